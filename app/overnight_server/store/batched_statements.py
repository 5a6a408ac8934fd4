"""Executes named statements through the driver itself, several in one round trip.

For small results SQLAlchemy takes longer than Postgres. The statements that every task passes
through therefore use psycopg2 directly, on SQLAlchemy's connection and in its transaction. Errors
are raised as SQLAlchemy's errors.
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

from overnight_server.store.lazy_begin_connection import (
    LazyBeginConnection,
    LazyBeginNamedTupleCursor,
)
from overnight_server.store.statements import driver_sql, ensure_prepared, prepared


class StatementCall(NamedTuple):
    """The name of a statement and the values of its parameters."""

    name: str
    params: Mapping[str, object] = MappingProxyType({})


class ResultRow(Protocol):
    """A row whose columns are attributes."""

    def __getattr__(self, name: str, /) -> Any: ...  # noqa: ANN401 - the column's type


class SessionValue(NamedTuple):
    """A parameter whose value an earlier statement of the same batch stored in the session.

    That statement stores it with `set_config('overnight.<name>', …, true)`. The empty string is
    read as NULL; other text is cast to `type`.
    """

    name: str
    type: str


register_adapter(
    SessionValue,
    lambda value: AsIs(
        f"CAST(nullif(current_setting('overnight.{value.name}'), '') AS {value.type})"
    ),
)


#: The instant at which the statement itself starts. `clock()` is the start of the whole batch, and
#: earlier statements of the batch may have waited for locks.
NOW = AsIs("clock_now()")
# The same in the text of a statement, where the function would be called for every row. EXECUTE
# accepts no subqueries.
_NOW_ONCE = AsIs("(SELECT clock_now())")


def execute_batch(tx: Connection, *calls: StatementCall) -> Sequence[ResultRow]:
    """Execute statements in order, in one round trip; return the rows of the last one.

    Each statement takes its own snapshot, so it sees what other transactions committed while an
    earlier statement of the batch waited for their locks.
    """
    return _send(tx, pack_batch(tx, *calls), LazyBeginNamedTupleCursor)


class PackedBatch(NamedTuple):
    """Statements that are sent together, as the SQL text with all values filled in."""

    names: Sequence[str]
    sql: bytes


def pack_batch(connection: Connection, *calls: StatementCall) -> PackedBatch:
    """Fill in the values of a batch; any connection of the same pool may send it."""
    with closing(_driver_connection(connection).cursor()) as cursor:
        return PackedBatch([call.name for call in calls], _sql(cursor, calls))


def send_batch(connection: Connection, batch: PackedBatch) -> Sequence[ResultRow]:
    """Execute a batch as a transaction of its own; return the rows of its last statement."""
    # Postgres executes several statements in one query text as one transaction, if none of them is
    # BEGIN.
    first_sql = cast("LazyBeginConnection", _driver_connection(connection)).first_sql
    return _send(connection, batch._replace(sql=first_sql + batch.sql), NamedTupleCursor)


def execute_and_commit(tx: Connection, *calls: StatementCall) -> None:
    """Execute the last statements of a transaction and commit it in the same round trip."""
    batch = pack_batch(tx, *calls)
    _send(tx, batch._replace(sql=batch.sql + b"; COMMIT"), LazyBeginNamedTupleCursor)


def prepend_call(tx: Connection, call: StatementCall) -> None:
    """Send a statement together with, and before, the next statement of the transaction."""
    with closing(_driver_connection(tx).cursor()) as cursor:
        ensure_prepared(tx, cursor, call.name)
        prepend_sql(tx, _sql(cursor, [call]))


def prepend_sql(tx: Connection, sql: bytes) -> None:
    """Send this SQL together with, and before, the next statement of the transaction."""
    cast("LazyBeginConnection", _driver_connection(tx)).prepend(sql)


def _send(
    tx: Connection, batch: PackedBatch, cursor_class: type[NamedTupleCursor]
) -> Sequence[ResultRow]:
    connection = _driver_connection(tx)
    cursor = connection.cursor(cursor_factory=cursor_class)
    try:
        for name in batch.names:
            ensure_prepared(tx, cursor, name)
        cursor.execute(batch.sql)
        return cursor.fetchall() if cursor.description else []
    except psycopg2.Error as error:
        raise _sqlalchemy_error(tx, connection, batch.names, error) from error
    finally:
        cursor.close()


def _sql(cursor: DBAPICursor, calls: Sequence[StatementCall]) -> bytes:
    if cursor.connection.keeps_session:
        return b"; ".join(
            cursor.mogrify(prepared(call.name).execute, call.params) for call in calls
        )
    return b"; ".join(cursor.mogrify(driver_sql(call.name), _inlined(call)) for call in calls)


def _inlined(call: StatementCall) -> Mapping[str, object]:
    """Return the values of a call for a text that is not prepared."""
    return {name: _NOW_ONCE if value is NOW else value for name, value in call.params.items()}


def _driver_connection(tx: Connection) -> DBAPIConnection:
    connection = tx.connection.dbapi_connection
    if connection is None:
        raise ValueError("the connection was closed before the transaction ended")
    return connection


def _sqlalchemy_error(
    tx: Connection, connection: DBAPIConnection, names: Sequence[str], error: psycopg2.Error
) -> BaseException:
    """Wrap a driver error as SQLAlchemy does; drop a broken connection from the pool."""
    broken = tx.dialect.is_disconnect(cast("DBAPIModule.Error", error), connection, None)
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
