"""The hot path: named statements straight through the driver, several in one round trip.

SQLAlchemy takes longer over a small result than Postgres over the statement. For the few statements
that every task passes through, the driver is asked itself, on the same connection and in the same
transaction; errors come out as SQLAlchemy's all the same.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, cast

import psycopg2
from psycopg2.extensions import AsIs, register_adapter
from psycopg2.extras import NamedTupleCursor
from sqlalchemy import Connection
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor, DBAPIModule
from sqlalchemy.exc import DBAPIError

from overnight_server.store.lazy_begin_connection import Link, NamedRows
from overnight_server.store.statements import learn, prepared


class Call(NamedTuple):
    """A statement's name, and what it is given."""

    name: str
    given: Mapping[str, object] = MappingProxyType({})


class Answer(Protocol):
    """A row, whose columns are read by their names."""

    def __getattr__(self, name: str, /) -> Any: ...  # noqa: ANN401 - as the column is


class Noted(NamedTuple):
    """What an earlier statement of the same trip has noted under a name, as a value of some type.

    It notes with `set_config('overnight.…', …, true)`; nothing at all stands for NULL.
    """

    name: str
    type: str


register_adapter(
    Noted,
    lambda noted: AsIs(
        f"CAST(nullif(current_setting('overnight.{noted.name}'), '') AS {noted.type})"
    ),
)


#: The moment at which the statement itself begins: those it travels with may have waited for locks.
NOW = AsIs("instant()")


def ask(tx: Connection, *calls: Call) -> Sequence[Answer]:
    """Execute named statements one after the other and return the rows of the last, if any.

    They travel together, but each is a statement of its own and sees what those before it have
    waited for.
    """
    return _send(tx, pack(tx, *calls), NamedRows)


class Trip(NamedTuple):
    """Statements that are a transaction of their own, and the words that ask for them."""

    names: Sequence[str]
    words: bytes


def pack(connection: Connection, *calls: Call) -> Trip:
    """Prepare a trip; any connection of the same pool may make it."""
    with closing(_link(connection).cursor()) as cursor:
        return Trip([call.name for call in calls], _words(cursor, calls))


def make(connection: Connection, trip: Trip) -> Sequence[Answer]:
    """Make a trip and return the rows of its last statement, if any."""
    # The server takes what travels together without a beginning for one transaction.
    return _send(connection, trip, NamedTupleCursor)


def finish(tx: Connection, *calls: Call) -> None:
    """Execute the last statements of a transaction, and end it with the same trip."""
    trip = pack(tx, *calls)
    _send(tx, trip._replace(words=trip.words + b"; COMMIT"), NamedRows)


def bring(tx: Connection, call: Call) -> None:
    """Have the next statement of a transaction, whatever it is, bring one along before itself."""
    link = _link(tx)
    with closing(link.cursor()) as cursor:
        learn(tx, cursor, call.name)
        cast("Link", link).bring(_words(cursor, [call]))


def _send(tx: Connection, trip: Trip, rows: type[NamedTupleCursor]) -> Sequence[Answer]:
    link = _link(tx)
    cursor = link.cursor(cursor_factory=rows)
    try:
        for name in trip.names:
            learn(tx, cursor, name)
        cursor.execute(trip.words)
        return cursor.fetchall() if cursor.description else []
    except psycopg2.Error as error:
        raise _as_ours(tx, link, trip.names, error) from error
    finally:
        cursor.close()


def _words(cursor: DBAPICursor, calls: Sequence[Call]) -> bytes:
    return b"; ".join(cursor.mogrify(prepared(call.name).execute, call.given) for call in calls)


def _link(tx: Connection) -> DBAPIConnection:
    link = tx.connection.dbapi_connection
    if link is None:
        raise ValueError("the connection was given up before the transaction ended")
    return link


def _as_ours(
    tx: Connection, link: DBAPIConnection, names: Sequence[str], error: psycopg2.Error
) -> BaseException:
    """Dress a driver's error as SQLAlchemy does; a connection that broke is not used again."""
    broken = tx.dialect.is_disconnect(cast("DBAPIModule.Error", error), link, None)
    if broken:
        tx.invalidate(error)
    return DBAPIError.instance(
        "; ".join(names),
        None,
        error,
        psycopg2.Error,
        connection_invalidated=broken,
        dialect=tx.dialect,
    )
