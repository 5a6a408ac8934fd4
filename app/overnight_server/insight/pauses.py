"""The pauses in force: what is paused, by whom, since when and why."""

from overnight.models.account import Pause
from overnight_server.store.db import Db
from overnight_server.store.pauses import pauses_in_force


def list_pauses(db: Db) -> list[Pause]:
    """Return every pause in force, the oldest first."""
    return db.atomically(pauses_in_force)
