"""The pauses in force: what is paused, by whom, since when and why."""

from overnight.models.account import Pause
from overnight_server.domain.ids import UserId
from overnight_server.store.db import Db
from overnight_server.store.pauses import pauses_in_force


def list_pauses(db: Db) -> list[Pause]:
    """Return every pause in force, the oldest first."""
    return db.atomically(pauses_in_force)


def list_own_pauses(db: Db, user_id: UserId) -> list[Pause]:
    """Return the pauses that keep a user's tasks waiting."""
    return db.atomically(lambda tx: pauses_in_force(tx, user_id))
