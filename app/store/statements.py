"""The hot statements: named SQL that stands in files and can be pasted into psql.

Each is prepared the first time a connection uses it: planning a statement of this size costs
about as much as running it for a hundred tasks. Those with filters that may be left out say
`(planned anew)`: one plan for all cases would be good for none.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sqlalchemy import Connection, Engine, TextClause, event, text
from sqlalchemy.engine.interfaces import DBAPICursor, ExecutionContext

FOLDER = Path(__file__).parent / "sql"
NAME = re.compile(r"^-- name: (\w+)( \(planned anew\))?\n", re.MULTILINE)
PARAMETER = re.compile(r"%\((\w+)\)s")
#: The execution option that names a statement, and the place where a connection keeps its own.
PREPARED = "overnight_prepared"


@cache
def statement(name: str) -> TextClause:
    """Return the statement called `name`, ready for `execute` with its parameters."""
    clause = text(sources()[name])
    return clause if name in _planned_anew() else clause.execution_options(**{PREPARED: name})


@cache
def sources() -> dict[str, str]:
    """Return the text of every named statement."""
    found: dict[str, str] = {}
    for name, _, body in _parts():
        if name in found:
            raise ValueError(f"two statements are called {name}")
        found[name] = body.strip()
    return found


@cache
def _planned_anew() -> set[str]:
    return {name for name, mark, _ in _parts() if mark}


def _parts() -> Iterator[tuple[str, str | None, str]]:
    for file in sorted(FOLDER.glob("*.sql")):
        _, *parts = NAME.split(file.read_text())
        yield from zip(parts[::3], parts[1::3], parts[2::3], strict=True)


def prepare_named(engine: Engine) -> None:
    """Have an engine's connections prepare each named statement once and then only execute it."""

    def rewrite(
        connection: Connection,
        cursor: DBAPICursor,
        sql: str,
        parameters: object,
        context: ExecutionContext | None,
        *_: object,
    ) -> tuple[str, object]:
        name = context.execution_options.get(PREPARED) if context else None
        if name is None:
            return sql, parameters
        known: set[str] = connection.info.setdefault(PREPARED, set())
        names = list(dict.fromkeys(PARAMETER.findall(sql)))
        if name not in known:
            cursor.execute(f"PREPARE {name} AS {numbered(sql, names)}")
            known.add(name)
        values = ", ".join(f"%({parameter})s" for parameter in names)
        return f"EXECUTE {name}" + (f" ({values})" if values else ""), parameters

    event.listen(engine, "before_cursor_execute", rewrite, retval=True)


def numbered(sql: str, names: list[str]) -> str:
    """Turn the driver's placeholders into those of a prepared statement.

    >>> numbered("SELECT %(a)s, %(b)s, 7 %% %(a)s", ["a", "b"])
    'SELECT $1, $2, 7 % $1'
    """
    places = {name: f"${place}" for place, name in enumerate(names, 1)}
    return PARAMETER.sub(lambda found: places[found[1]], sql).replace("%%", "%")
