"""Every command that a message names exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from overnight_server.cli.main import app

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "app", ROOT / "overnight", ROOT / "workers")
# How messages write a command: in backticks or in brackets.
NAMED = re.compile(r"[`(]overnight ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")


def named() -> Iterator[tuple[str, str, str]]:
    """Yield where a text names a command, with the command and the word after it."""
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    for command, word in NAMED.findall(node.value):
                        yield place, command, word
        for path in sorted(package.rglob("*.html")):
            for command, word in NAMED.findall(path.read_text()):
                yield str(path.relative_to(ROOT)), command, word


def exists(root: Any, command: str, word: str) -> bool:
    """Whether a command exists; the word after the name of a group is one of its commands."""
    found = root.commands.get(command)
    if found is None:
        return False
    inner = getattr(found, "commands", None)
    return inner is None or not word or word in inner


def test_every_command_that_a_message_names_exists() -> None:
    root = get_command(app)
    texts = list(named())

    missing = [
        f"{place}: overnight {command} {word}".rstrip()
        for place, command, word in texts
        if not exists(root, command, word)
    ]

    assert missing == []
    assert len(texts) > 100
    assert not exists(root, "dead-letters", "")
    assert not exists(root, "schedule", "delete")
