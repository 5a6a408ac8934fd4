"""Start billing months and night budgets that are due, and open and close night windows."""

from sqlalchemy import Connection

from overnight_server.fault_points import fault
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.telemetry import LogEvent, emit

BATCH = 500


def reset_cycles(db: Db) -> int:
    """Refresh every lane whose month, night or window state has ended; return the number of lanes.

    A refresh starts the new billing month, resets the night budget, and opens or closes the window.
    """
    limit, total = PassLimit(), 0
    while True:
        refreshed = db.atomically(_refresh_batch)
        fault("reset.after_commit")
        for user_id in refreshed.cycles:
            emit(LogEvent.CYCLE_RESET, user_id=user_id)
        total += refreshed.due
        if refreshed.due < BATCH or limit.is_over:
            return total


def _refresh_batch(tx: Connection) -> lanes.RefreshedLanes:
    refreshed = lanes.refresh_due_lanes(tx, BATCH)
    fault("reset.before_commit")
    return refreshed
