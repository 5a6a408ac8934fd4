"""Counts the statements that this process sends to Postgres."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection, Engine, event

from overnight_server.store import batched_statements
from overnight_server.store.batched_statements import PackedBatch

#: What every transaction sets for its user, in the round trip of its first statement.
PREAMBLE = frozenset({"set_acting_user", "set_traceparent", "check_key"})


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    """Yield a list that gets the name or the text of each statement within the context."""
    sent: list[str] = []
    send = batched_statements._send

    def note_batch(tx: Connection, batch: PackedBatch, *more: Any) -> Sequence[Any]:
        sent.extend(name for name in batch.names if name not in PREAMBLE)
        return send(tx, batch, *more)

    def note(_connection: Connection, _cursor: object, text: str, *_more: object) -> None:
        sent.append(text)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        with patch.object(batched_statements, "_send", note_batch):
            yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)
