"""Compare the counters of lanes and of the whole queue with the rows they count; repair them.

With many users one pass checks a part of the lanes, in the order of user ids, and the next pass
continues after it. The end of a round also checks the depth of the whole queue.
"""

import time
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.fault_points import fault
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.store.sweep_positions import set_sweep_position, sweep_position
from overnight_server.telemetry import LogEvent, emit

NAME = "audit"
FIRST_USER = UUID(int=0)
LAST_USER = UUID(int=2**128 - 1)
# One statement checks at most this many lanes, and stops earlier when they have this many waiting
# tasks together.
LANES_PER_SLICE = 1_000
WAITING_PER_SLICE = 50_000
# A pass starts no further slice after this time. A slice takes a fraction of it, and the end of a
# round about 0.6 s with a million users.
PASS_SECONDS = 0.3


def audit(
    db: Db, *, pass_seconds: float = PASS_SECONDS, lanes_per_slice: int = LANES_PER_SLICE
) -> int:
    """Continue where the last pass stopped; stop after `pass_seconds`, or at the last lane.

    Repair and log every lane whose counters are wrong; return their number, ideally 0.
    """
    began = time.monotonic()
    stored = sweep_position(db, NAME)
    first = FIRST_USER if stored is None else UUID(stored)
    repaired = 0
    while True:
        next_user, drifted = _check_slice(db, first, lanes_per_slice)
        repaired += drifted
        if next_user is None or time.monotonic() - began >= pass_seconds:
            break
        first = next_user
    set_sweep_position(db, NAME, None if next_user is None else str(next_user))
    if next_user is None:
        db.atomically(_repair_depth)
    return repaired


def audit_all(db: Db) -> int:
    """Check all lanes; repair and log those with wrong counters and return their number."""
    set_sweep_position(db, NAME, None)
    return audit(db, pass_seconds=float("inf"))


def _check_slice(db: Db, first: UUID, size: int) -> tuple[UUID | None, int]:
    """Repair the lanes of a slice; return the first user after it (None: the end) and a count."""
    params = {"first": first, "lanes": size, "max_waiting": WAITING_PER_SLICE}
    rows = db.atomically(lambda tx: tx.execute(statement("compare_lanes"), params).all())
    fault("audit.after_search")
    drifted = [row.user_id for row in rows if row.has_drifted and _repair(db, row.user_id)]
    for user_id in drifted:
        emit(LogEvent.LANE_DRIFT, user_id=user_id)
    last = rows[-1].user_id if rows else LAST_USER
    return (None if last == LAST_USER else UUID(int=last.int + 1)), len(drifted)


def _repair(db: Db, user_id: UUID) -> bool:
    """Recount one lane; return False if its counters are right once it is locked."""

    def work(tx: Connection) -> bool:
        # Compared again under the lock: the first read may have seen a change in progress.
        lanes.lock(tx, [user_id])
        [row] = tx.execute(
            statement("compare_lanes"),
            {"first": user_id, "lanes": 1, "max_waiting": WAITING_PER_SLICE},
        )
        if not row.has_drifted:
            return False
        tx.execute(statement("recount_lane"), {"user_id": user_id})
        return True

    return db.atomically(work)


def _repair_depth(tx: Connection) -> None:
    """Merge the depth counters of closed connections; correct and log a wrong sum."""
    correction = tx.execute(statement("repair_depth")).scalar_one()
    if correction:
        emit(LogEvent.DEPTH_DRIFT, tasks=correction)
