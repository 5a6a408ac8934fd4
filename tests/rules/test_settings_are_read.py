"""Every setting is read by some code; one without effect would be a promise that is not kept."""

import ast

from overnight_server.settings import Settings
from tests.rules.sources import as_lines, modules

# Where the settings of a process are called by another name.
NAMES = {"settings", "configured", "defaults"}
# The settings package itself reads these, by name.
READ_WHILE_LOADING = {"allow_short_clocks", "config_file"}


def test_every_setting_is_read() -> None:
    read = {
        node.attr
        for path, tree in modules("app", "workers")
        if path.parts[-2] != "settings"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and _is_settings(node.value)
    }

    assert as_lines(sorted(set(Settings.model_fields) - read - READ_WHILE_LOADING)) == as_lines([])


def _is_settings(value: ast.expr) -> bool:
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return name.strip("_").lower() in NAMES
