"""Connections that begin a transaction with its first statement instead of a trip before it.

The driver begins a transaction by itself, but with a question of its own, which takes as long as a
small statement. Here the beginning travels with the first statement, whatever that is, and so does
whatever else has to be said before anything is asked.
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

# What a transaction begins with, by the driver's name for how far it is shielded from others.
BEGINNINGS: Final[Mapping[int, bytes]] = MappingProxyType(
    {
        ISOLATION_LEVEL_AUTOCOMMIT: b"",
        ISOLATION_LEVEL_READ_COMMITTED: b"BEGIN; ",
        ISOLATION_LEVEL_REPEATABLE_READ: b"BEGIN ISOLATION LEVEL REPEATABLE READ; ",
    }
)
Query = str | bytes | Composable
Values = Sequence[Any] | Mapping[str, Any] | None


class Link(connection):
    """A connection whose statements begin transactions; it ends only those that have begun."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as the driver has it
        super().__init__(*args, **kwargs)
        self.autocommit = True
        self.cursor_factory = Cursor
        self._beginning = BEGINNINGS[ISOLATION_LEVEL_READ_COMMITTED]
        self._brought = b""

    def has_news(self) -> bool:
        """Whether the server has said something unasked: mostly that it hangs up."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def ping(self) -> None:
        """Ask whether the server is there, and begin nothing."""
        with self.cursor(cursor_factory=cursor) as plain:
            plain.execute("SELECT")

    def bring(self, words: bytes) -> None:
        """Have the transaction's next statement bring these along, before itself."""
        self._brought += words + b"; "

    def opening(self) -> bytes:
        """Return what the next statement must open with; it is told once."""
        has_begun = self.get_transaction_status() != TRANSACTION_STATUS_IDLE
        brought, self._brought = self._brought, b""
        return brought if has_begun else self._beginning + brought

    def set_isolation_level(self, level: int | None) -> None:
        """Choose how the next transaction is shielded; one that only asked for life is ended."""
        self.rollback()
        self._beginning = BEGINNINGS[ISOLATION_LEVEL_READ_COMMITTED if level is None else level]

    def commit(self) -> None:
        """Make what was written count."""
        self._end("COMMIT")

    def rollback(self) -> None:
        """Undo what was written."""
        self._end("ROLLBACK")

    def _end(self, word: str) -> None:
        self._brought = b""
        if self.get_transaction_status() != TRANSACTION_STATUS_IDLE:
            with self.cursor(cursor_factory=cursor) as plain:
                plain.execute(word)


class Cursor(cursor):
    """A cursor whose first statement begins the transaction."""

    connection: Link

    def execute(self, query: Query, vars: Values = None) -> None:  # noqa: A002 - the driver's name
        """Execute a statement, in a transaction."""
        if opening := self.connection.opening():
            super().execute(opening + self.mogrify(query, vars))
        else:
            super().execute(query, vars)

    def executemany(self, query: Query, vars_list: Iterable[Values]) -> None:
        """Execute a statement for each of many values, in a transaction."""
        if opening := self.connection.opening():
            super().execute(opening)
        super().executemany(query, vars_list)


class NamedRows(Cursor, NamedTupleCursor):
    """The same, with rows whose columns are read by their names."""
