"""Every log event of the table is emitted by the code."""

import ast

from overnight_server.telemetry import LogEvent
from tests.rules.sources import modules

TABLE = "telemetry.py"


def test_every_documented_event_is_emitted() -> None:
    passed_to_calls = {
        node.attr
        for path, module in modules("app", "workers")
        for call in ast.walk(module)
        if path.name != TABLE and isinstance(call, ast.Call)
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
        for node in ast.walk(argument)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("LogEvent")
    }

    assert set(LogEvent.__members__) - passed_to_calls == set()
