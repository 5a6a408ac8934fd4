"""What an operator does with rows of the inbox that could not become tasks."""

from overnight.errors import InboxRowNotFound
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def retry_row(db: Db, row_id: int) -> None:
    """Let a refused row be tried again, at its old place in its user's line."""
    values = {"row_id": row_id}
    if db.atomically(lambda tx: tx.execute(statement("retry_inbox"), values).first()) is None:
        raise InboxRowNotFound(row_id, "was refused")


def drop_row(db: Db, row_id: int, *, actor: str) -> None:
    """Give a row up that waits or was refused; it stays to be seen."""
    values = {"row_id": row_id, "actor": actor}
    if db.atomically(lambda tx: tx.execute(statement("drop_inbox"), values).first()) is None:
        raise InboxRowNotFound(row_id, "waits or was refused")
