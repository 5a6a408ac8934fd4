"""Named SQL statements from the files in `sql/`, prepared once per connection.

Each file holds statements that start with `-- name: <name>`; each can be pasted into psql. Planning
a large statement takes about as long as running it for a hundred tasks, so a connection prepares a
statement when it first uses it. A statement marked `(not prepared)` has optional filters, for which
no single plan is good; Postgres plans it for each call.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, Engine, TextClause, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPICursor, ExecutionContext

FOLDER = Path(__file__).parent / "sql"
NAME = re.compile(r"^-- name: (\w+)(?: \((not prepared)\))?\n", re.MULTILINE)
PARAMETER = re.compile(r"%\((\w+)\)s")
#: The execution option with a statement's name; also the key of a connection's prepared statements.
PREPARED = "overnight_prepared"
# The key of the number of the plans that a connection has.
PLANS_NUMBER = "overnight_plans_number"
STALE_PLAN = "cached plan must not change result type"
NOT_PREPARED = "26000"


@cache
def statement(name: str) -> TextClause:
    """Return the statement called `name`, for `Connection.execute` with its parameters."""
    clause = text(sources()[name])
    return clause if name in _not_prepared() else clause.execution_options(**{PREPARED: name})


@cache
def sources() -> dict[str, str]:
    """Return the SQL text of every statement by name; raise ValueError if a name occurs twice."""
    texts: dict[str, str] = {}
    for part in _parts():
        if part.name in texts:
            raise ValueError(f"two statements are called {part.name}")
        texts[part.name] = part.body
    return texts


class _Part(NamedTuple):
    name: str
    mark: str | None
    body: str


@cache
def _not_prepared() -> set[str]:
    return {part.name for part in _parts() if part.mark}


def _parts() -> Iterator[_Part]:
    for file in sorted(FOLDER.glob("*.sql")):
        _, *parts = NAME.split(file.read_text())
        for index in range(0, len(parts), 3):
            name, mark, body = parts[index : index + 3]
            yield _Part(name, mark, body.strip())


class Prepared(NamedTuple):
    """The SQL that prepares a statement, and the SQL that executes it afterwards."""

    prepare: str | None
    execute: str


@cache
def driver_sql(name: str) -> str:
    """Return the text of the statement called `name` with the placeholders of the driver."""
    dialect = make_url("postgresql+psycopg2://").get_dialect()()
    return str(text(sources()[name]).compile(dialect=dialect))


@cache
def prepared(name: str) -> Prepared:
    """Return the PREPARE and EXECUTE commands of the statement called `name`.

    For a statement that is not prepared they are None and its own text.
    """
    sql = driver_sql(name)
    if name in _not_prepared():
        return Prepared(None, sql)
    names = list(dict.fromkeys(PARAMETER.findall(sql)))
    values = ", ".join(f"%({parameter})s" for parameter in names)
    return Prepared(
        f"PREPARE {name} AS {number_placeholders(sql, names)}",
        f"EXECUTE {name}" + (f" ({values})" if values else ""),
    )


def prepare_named(engine: Engine) -> None:
    """Make an engine's connections prepare each named statement once and then execute it."""

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
        ensure_prepared(connection, cursor, name)
        return prepared(name).execute, parameters

    event.listen(engine, "before_cursor_execute", rewrite, retval=True)


class PreparedPlans:
    """The number of the plans that this process uses; connections with older ones drop them.

    Postgres plans a statement again when a migration changes its tables, but refuses to execute it
    if its result has another column then.
    """

    def __init__(self) -> None:
        self.number = 0

    def renew_after(self, error: Exception | None) -> bool:
        """Let all connections prepare anew if an error says that a plan is out of date."""
        is_stale = STALE_PLAN in str(error) or getattr(error, "pgcode", None) == NOT_PREPARED
        self.number += is_stale
        return is_stale


#: The plans of this process.
PLANS = PreparedPlans()


def ensure_prepared(connection: Connection, cursor: DBAPICursor, name: str) -> None:
    """Prepare a named statement unless this connection already did or keeps no session."""
    if not cursor.connection.keeps_session:
        return
    names: set[str] = connection.info.setdefault(PREPARED, set())
    if connection.info.setdefault(PLANS_NUMBER, PLANS.number) != PLANS.number:
        cursor.execute("DEALLOCATE ALL")
        names.clear()
        connection.info[PLANS_NUMBER] = PLANS.number
    command = prepared(name).prepare
    if command is not None and name not in names:
        cursor.execute(command)
        names.add(name)


def number_placeholders(sql: str, names: list[str]) -> str:
    """Replace the driver's named placeholders by the numbered ones of PREPARE.

    >>> number_placeholders("SELECT %(a)s, %(b)s, 7 %% %(a)s", ["a", "b"])
    'SELECT $1, $2, 7 % $1'
    """
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    return PARAMETER.sub(lambda match: numbers[match[1]], sql).replace("%%", "%")
