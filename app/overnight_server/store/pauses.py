"""Pauses in force, as the read services and explain use them."""

from sqlalchemy import Connection

from overnight.models.account import Pause
from overnight_server.domain.ids import UserId
from overnight_server.store.batched_statements import StatementCall, execute_batch


def pauses_in_force(tx: Connection, user_id: UserId | None = None) -> list[Pause]:
    """Return the pauses that stop this user's tasks from starting; without a user, all pauses."""
    rows = execute_batch(tx, StatementCall("view_pauses", {"user_id": user_id}))
    return [Pause(**row._asdict()) for row in rows]
