"""Retry or drop rows of the inbox that could not become tasks; the audit log records who did it."""

from sqlalchemy import Connection

from overnight.errors import InboxRowNotFound
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def retry_row(db: Db, row_id: int, *, actor: str) -> None:
    """Process a refused row again, at its old position in the user's inbox.

    Raises InboxRowNotFound if no row with this id was refused.
    """

    def work(tx: Connection) -> None:
        tx.execute(statement("set_actor"), {"actor": actor})
        if tx.execute(statement("retry_inbox"), {"row_id": row_id}).first() is None:
            raise InboxRowNotFound(row_id, "was refused")

    db.atomically(work)


def drop_row(db: Db, row_id: int, *, actor: str) -> None:
    """Drop a row that waits or was refused; the row stays visible but never becomes a task.

    Raises InboxRowNotFound if no row with this id waits or was refused.
    """

    def work(tx: Connection) -> None:
        tx.execute(statement("set_actor"), {"actor": actor})
        if tx.execute(statement("drop_inbox"), {"row_id": row_id, "actor": actor}).first() is None:
            raise InboxRowNotFound(row_id, "waits or was refused")

    db.atomically(work)
