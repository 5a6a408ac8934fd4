"""Bringing lanes to the present: new billing months begun, night windows opened and closed."""

from sqlalchemy import Connection

from overnight_server.fault_points import fault
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.telemetry import Event, emit

BATCH = 500


def reset_cycles(db: Db) -> int:
    """Begin the current month for lanes whose month is over, turn due windows; return how many."""
    total = 0
    while True:
        refreshed = db.atomically(_bring_up)
        fault("reset.after_commit")
        for user_id in refreshed.cycles:
            emit(Event.CYCLE_RESET, user_id=user_id)
        total += refreshed.due
        if refreshed.due < BATCH:
            return total


def _bring_up(tx: Connection) -> lanes.RefreshedLanes:
    refreshed = lanes.refresh_due_lanes(tx, BATCH)
    fault("reset.before_commit")
    return refreshed
