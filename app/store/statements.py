"""The hot statements: named SQL that stands in files and can be pasted into psql."""

import re
from functools import cache
from pathlib import Path

from sqlalchemy import TextClause, text

FOLDER = Path(__file__).parent / "sql"
NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def statement(name: str) -> TextClause:
    """Return the statement called `name`, ready for `execute` with its parameters."""
    return text(sources()[name])


@cache
def sources() -> dict[str, str]:
    """Return the text of every named statement."""
    found: dict[str, str] = {}
    for file in sorted(FOLDER.glob("*.sql")):
        _, *parts = NAME.split(file.read_text())
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"two statements are called {name}")
            found[name] = body.strip()
    return found
