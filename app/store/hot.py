"""The hot path: named statements straight through the driver, several in one round trip.

SQLAlchemy takes longer over a small result than Postgres over the statement. For the few statements
that every task passes through, the driver is asked itself, on the same connection and in the same
transaction; errors come out as SQLAlchemy's all the same.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, cast

import psycopg2
from sqlalchemy import Connection
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPIModule
from sqlalchemy.exc import DBAPIError

from app.store.link import NamedRows
from app.store.statements import learn, prepared


class Call(NamedTuple):
    """A statement's name, and what it is given."""

    name: str
    given: Mapping[str, object] = MappingProxyType({})


class Answer(Protocol):
    """A row, whose columns are read by their names."""

    def __getattr__(self, name: str, /) -> Any: ...  # noqa: ANN401 - as the column is


def ask(tx: Connection, *calls: Call) -> Sequence[Answer]:
    """Execute named statements one after the other and return the rows of the last, if any.

    They travel together, but each is a statement of its own and sees what those before it have
    waited for.
    """
    link = tx.connection.dbapi_connection
    if link is None:
        raise ValueError("the connection was given up before the transaction ended")
    cursor = link.cursor(cursor_factory=NamedRows)
    try:
        for call in calls:
            learn(tx, cursor, call.name)
        cursor.execute(
            b"; ".join(cursor.mogrify(prepared(call.name).execute, call.given) for call in calls)
        )
        return cursor.fetchall() if cursor.description else []
    except psycopg2.Error as error:
        raise _as_ours(tx, link, calls, error) from error
    finally:
        cursor.close()


def _as_ours(
    tx: Connection, link: DBAPIConnection, calls: Sequence[Call], error: psycopg2.Error
) -> BaseException:
    """Dress a driver's error as SQLAlchemy does; a connection that broke is not used again."""
    broken = tx.dialect.is_disconnect(cast("DBAPIModule.Error", error), link, None)
    if broken:
        tx.invalidate(error)
    return DBAPIError.instance(
        "; ".join(call.name for call in calls),
        None,
        error,
        psycopg2.Error,
        connection_invalidated=broken,
        dialect=tx.dialect,
    )
