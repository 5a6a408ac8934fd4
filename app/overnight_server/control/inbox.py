"""Retry or drop rows of the inbox that could not become tasks."""

from overnight.errors import InboxRowNotFound
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def retry_row(db: Db, row_id: int) -> None:
    """Process a refused row again, at its old position in the user's inbox."""
    values = {"row_id": row_id}
    if db.atomically(lambda tx: tx.execute(statement("retry_inbox"), values).first()) is None:
        raise InboxRowNotFound(row_id, "was refused")


def drop_row(db: Db, row_id: int, *, actor: str) -> None:
    """Drop a row that waits or was refused; the row stays visible but never becomes a task."""
    values = {"row_id": row_id, "actor": actor}
    if db.atomically(lambda tx: tx.execute(statement("drop_inbox"), values).first()) is None:
        raise InboxRowNotFound(row_id, "waits or was refused")
