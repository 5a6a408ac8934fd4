"""Comparing the lanes' counters with the rows they count."""

from uuid import UUID

from sqlalchemy import Connection

from overnight_server.fault_points import fault
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import Event, emit


def audit(db: Db) -> int:
    """Repair every lane that drifted and raise an alarm; return how many. It should be none."""
    suspects = db.atomically(lambda tx: tx.execute(statement("drifted_lanes")).scalars().all())
    fault("audit.after_look")
    drifted = [user_id for user_id in suspects if _repaired(db, user_id)]
    for user_id in drifted:
        emit(Event.LANE_DRIFT, user_id=user_id)
    return len(drifted)


def _repaired(db: Db, user_id: UUID) -> bool:
    return db.atomically(lambda tx: _repair(tx, user_id))


def _repair(tx: Connection, user_id: UUID) -> bool:
    # Looked at again with the lane held: the first look may have caught a change half way.
    lanes.lock(tx, [user_id])
    still = set(tx.execute(statement("drifted_lanes")).scalars())
    if user_id not in still:
        return False
    tx.execute(statement("recount_lane"), {"user_id": user_id})
    return True
