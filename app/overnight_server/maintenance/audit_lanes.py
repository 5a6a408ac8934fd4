"""Compare the counters of the lanes with the task rows, and repair them."""

from uuid import UUID

from sqlalchemy import Connection

from overnight_server.fault_points import fault
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, emit


def audit(db: Db) -> int:
    """Repair and log every lane whose counters are wrong; return their number, ideally 0."""
    candidates = db.atomically(lambda tx: tx.execute(statement("drifted_lanes")).scalars().all())
    fault("audit.after_search")
    drifted = [user_id for user_id in candidates if _repair(db, user_id)]
    for user_id in drifted:
        emit(LogEvent.LANE_DRIFT, user_id=user_id)
    return len(drifted)


def _repair(db: Db, user_id: UUID) -> bool:
    """Recount one lane; return False if its counters are right once it is locked."""

    def work(tx: Connection) -> bool:
        # Compared again under the lock: the first read may have seen a change in progress.
        lanes.lock(tx, [user_id])
        if user_id not in set(tx.execute(statement("drifted_lanes")).scalars()):
            return False
        tx.execute(statement("recount_lane"), {"user_id": user_id})
        return True

    return db.atomically(work)
