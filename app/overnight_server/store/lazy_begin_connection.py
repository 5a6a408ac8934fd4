"""A psycopg2 connection that sends BEGIN together with the first statement of a transaction.

psycopg2 sends BEGIN as a statement of its own, and that round trip takes as long as a small query.
Here BEGIN is the first part of the first statement's text. SQL passed to `prepend` is sent with it.

Behind a pooler in transaction mode each transaction may use another session of Postgres. Such a
connection prepares no statements and sends its session options with every transaction.
"""

import select
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from psycopg2.extensions import (
    ISOLATION_LEVEL_AUTOCOMMIT,
    ISOLATION_LEVEL_READ_COMMITTED,
    ISOLATION_LEVEL_REPEATABLE_READ,
    TRANSACTION_STATUS_IDLE,
    connection,
    cursor,
)
from psycopg2.extras import NamedTupleCursor
from psycopg2.sql import Composable

BEGIN_BY_ISOLATION_LEVEL: Final[Mapping[int, bytes]] = MappingProxyType(
    {
        ISOLATION_LEVEL_AUTOCOMMIT: b"",
        ISOLATION_LEVEL_READ_COMMITTED: b"BEGIN; ",
        ISOLATION_LEVEL_REPEATABLE_READ: b"BEGIN ISOLATION LEVEL REPEATABLE READ; ",
    }
)
Query = str | bytes | Composable
Values = Sequence[Any] | Mapping[str, Any] | None


class LazyBeginConnection(connection):
    """A connection whose first statement begins the transaction.

    `transaction_options` are the session options that each transaction sets for itself, by name;
    None if the session keeps its options and prepared statements.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - psycopg2's signature
        transaction_options: Mapping[str, str] | None = None,
        **kwargs: Any,  # noqa: ANN401 - psycopg2's signature
    ) -> None:
        super().__init__(*args, **kwargs)
        self.keeps_session = transaction_options is None
        self.first_sql = b""
        if transaction_options:
            with self.cursor() as plain:
                calls = ", ".join(["set_config(%s, %s, true)"] * len(transaction_options))
                values = [text for option in transaction_options.items() for text in option]
                self.first_sql = plain.mogrify(f"SELECT {calls}; ", values)
        self.autocommit = True
        self.cursor_factory = LazyBeginCursor
        self._begin = BEGIN_BY_ISOLATION_LEVEL[ISOLATION_LEVEL_READ_COMMITTED]
        self._prepended = b""

    def has_unread_data(self) -> bool:
        """Whether the server sent data without a query, which mostly means that it disconnected."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def ping(self) -> float:
        """Return the server's time in seconds since 1970; raise if the server is gone.

        It begins no transaction.
        """
        with self.cursor(cursor_factory=cursor) as plain:
            plain.execute("SELECT CAST(extract(epoch FROM clock_timestamp()) AS float8)")
            [[seconds]] = plain.fetchall()
        return float(seconds)

    def prepend(self, sql: bytes) -> None:
        """Send this SQL together with, and before, the next statement of the transaction."""
        self._prepended += sql + b"; "

    def pop_prefix(self) -> bytes:
        """Return the SQL that must precede the next statement, and clear it."""
        has_begun = self.get_transaction_status() != TRANSACTION_STATUS_IDLE
        prepended, self._prepended = self._prepended, b""
        return prepended if has_begun else self._begin + self.first_sql + prepended

    def set_isolation_level(self, level: int | None) -> None:
        """Roll back an open transaction and choose the isolation level of the next one."""
        self.rollback()
        self._begin = BEGIN_BY_ISOLATION_LEVEL[
            ISOLATION_LEVEL_READ_COMMITTED if level is None else level
        ]

    def commit(self) -> None:
        """Commit the transaction, if one has begun."""
        self._end("COMMIT")

    def rollback(self) -> None:
        """Roll back the transaction, if one has begun."""
        self._end("ROLLBACK")

    def _end(self, command: str) -> None:
        self._prepended = b""
        if self.get_transaction_status() != TRANSACTION_STATUS_IDLE:
            with self.cursor(cursor_factory=cursor) as plain:
                plain.execute(command)


class LazyBeginCursor(cursor):
    """A cursor whose first statement begins the transaction."""

    connection: LazyBeginConnection

    def execute(self, query: Query, vars: Values = None) -> None:  # noqa: A002 - psycopg2's name
        """Execute a statement in a transaction."""
        if prefix := self.connection.pop_prefix():
            super().execute(prefix + self.mogrify(query, vars))
        else:
            super().execute(query, vars)

    def executemany(self, query: Query, vars_list: Iterable[Values]) -> None:
        """Execute a statement once for each set of values, in a transaction."""
        if prefix := self.connection.pop_prefix():
            super().execute(prefix)
        super().executemany(query, vars_list)


class LazyBeginNamedTupleCursor(LazyBeginCursor, NamedTupleCursor):
    """A lazy-begin cursor that returns rows as named tuples."""
