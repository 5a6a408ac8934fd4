"""The hot statements: named SQL that stands in files and can be pasted into psql.

Each is prepared the first time a connection uses it: planning a statement of this size costs
about as much as running it for a hundred tasks. Those with filters that may be left out say
`(planned anew)`: one plan for all cases would be good for none. One that judges exactly as another
does says `(begins as claim through chosen)`: it opens with that one's words, up to the end of that
part, so that the two cannot come to differ; and it may go on so with a second one's. One that acts
as another does says `(ends as claim from taken)`.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, Engine, TextClause, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPICursor, ExecutionContext

FOLDER = Path(__file__).parent / "sql"
NAME = re.compile(
    r"^-- name: (\w+)(?: \((planned anew)\))?(?: \(begins as ([\w ]+)\))?"
    r"(?: \(ends as (\w+ from \w+)\))?\n",
    re.MULTILINE,
)
HEAD = re.compile(r"\A(?:--.*\n)*WITH ")
PARTS = re.compile(r"(\w+) through (\w+)")
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
    for part in _parts():
        if part.name in found:
            raise ValueError(f"two statements are called {part.name}")
        found[part.name] = part.body
    return found | {part.name: _whole(part, found) for part in _parts() if part.models or part.ends}


class _Part(NamedTuple):
    """One named statement as it stands in its file; it may share others' openings, and an end."""

    name: str
    planned_anew: str | None
    models: str | None
    ends: str | None
    body: str


@cache
def _planned_anew() -> set[str]:
    return {part.name for part in _parts() if part.planned_anew}


def _parts() -> Iterator[_Part]:
    for file in sorted(FOLDER.glob("*.sql")):
        _, *parts = NAME.split(file.read_text())
        for place in range(0, len(parts), 5):
            name, anew, models, ends, body = parts[place : place + 5]
            yield _Part(name, anew, models, ends, body.strip())


def _whole(part: _Part, found: Mapping[str, str]) -> str:
    """Return a statement with what it shares with others."""
    opening = f"{_openings(part.models, found)}\n" if part.models else ""
    end = ""
    if part.ends:
        model, _, first = part.ends.partition(" from ")
        end = _end(found[model], first)
    return f"{opening}{part.body}{end}"


def _openings(models: str, found: Mapping[str, str]) -> str:
    r"""Join the openings of other statements, which are named like `claim through chosen`.

    >>> found = {"x": "WITH a AS (\n)", "y": "-- b\nWITH b AS (\n)"}
    >>> _openings("x through a and y through b", found)
    'WITH a AS (\n), b AS (\n)'
    """
    openings = [_opening(found[name], part) for name, part in PARTS.findall(models)]
    return ", ".join([openings[0], *(HEAD.sub("", one) for one in openings[1:])])


def _end(body: str, first: str) -> str:
    r"""Return a statement from one of its parts on, with the comma before it.

    >>> _end("WITH a AS (\n    SELECT 1\n), b AS (\n    SELECT 2\n)\nSELECT 3", "b")
    ', b AS (\n    SELECT 2\n)\nSELECT 3'
    """
    begins = re.search(rf", {first} AS (?:MATERIALIZED )?\(", body)
    if begins is None:
        raise ValueError(f"no part of the statement is called {first}")
    return body[begins.start() :]


def _opening(body: str, through: str) -> str:
    r"""Return a statement up to the end of one of its parts, which a bracket of its own closes.

    >>> _opening("WITH a AS (\n    SELECT 1\n), b AS (\n    SELECT 2\n) SELECT 3", "a")
    'WITH a AS (\n    SELECT 1\n)'
    """
    begins = re.search(rf"\b{through} AS (?:MATERIALIZED )?\(", body)
    if begins is None:
        raise ValueError(f"no part of the statement is called {through}")
    ends = body.index("\n)", begins.end())
    return body[:ends] + "\n)"


class Prepared(NamedTuple):
    """How a connection learns a named statement, and how it is then asked for it."""

    prepare: str
    execute: str


@cache
def prepared(name: str) -> Prepared:
    """Return the words that prepare the statement called `name`, and those that execute it."""
    sql = str(
        text(sources()[name]).compile(dialect=make_url("postgresql+psycopg2://").get_dialect()())
    )
    names = list(dict.fromkeys(PARAMETER.findall(sql)))
    values = ", ".join(f"%({parameter})s" for parameter in names)
    return Prepared(
        f"PREPARE {name} AS {number_placeholders(sql, names)}",
        f"EXECUTE {name}" + (f" ({values})" if values else ""),
    )


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
        ensure_prepared(connection, cursor, name)
        return prepared(name).execute, parameters

    event.listen(engine, "before_cursor_execute", rewrite, retval=True)


def ensure_prepared(connection: Connection, cursor: DBAPICursor, name: str) -> None:
    """Prepare a named statement, unless this connection knows it already."""
    known: set[str] = connection.info.setdefault(PREPARED, set())
    if name not in known:
        cursor.execute(prepared(name).prepare)
        known.add(name)


def number_placeholders(sql: str, names: list[str]) -> str:
    """Turn the driver's placeholders into those of a prepared statement.

    >>> number_placeholders("SELECT %(a)s, %(b)s, 7 %% %(a)s", ["a", "b"])
    'SELECT $1, $2, 7 % $1'
    """
    places = {name: f"${place}" for place, name in enumerate(names, 1)}
    return PARAMETER.sub(lambda found: places[found[1]], sql).replace("%%", "%")
