"""Beginning new billing months."""

from uuid import UUID

from sqlalchemy import Connection

from app.faults import fault
from app.store import lanes
from app.store.db import Db
from app.telemetry import Event, emit

BATCH = 500


def reset_cycles(db: Db) -> int:
    """Begin the current month for every lane whose month is over; return how many."""
    total = 0
    while True:
        rolled = db.atomically(_begin_months)
        fault("reset.after_commit")
        for user_id in rolled:
            emit(Event.CYCLE_RESET, user_id=user_id)
        total += len(rolled)
        if len(rolled) < BATCH:
            return total


def _begin_months(tx: Connection) -> list[UUID]:
    rolled = lanes.roll_due(tx, BATCH)
    fault("reset.before_commit")
    return rolled
