"""Every log event of the table is emitted by the code."""

import ast

from overnight_server.telemetry import LogEvent
from tests.rules.sources import modules

TABLE = "telemetry.py"


def test_every_documented_event_is_emitted() -> None:
    used = {
        node.attr
        for path, module in modules("app", "workers")
        for node in ast.walk(module)
        if path.name != TABLE and isinstance(node, ast.Attribute)
    }

    assert set(LogEvent.__members__) - used == set()
