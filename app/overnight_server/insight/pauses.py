"""Which pauses are in force: of whom, by whom, since when and why."""

from overnight_server.store.db import Db
from overnight_server.store.pauses import PauseView, pauses_in_force


def list_pauses(db: Db) -> list[PauseView]:
    """Return every pause in force, the oldest first."""
    return db.atomically(pauses_in_force)
