"""Promote: make tasks ready whose retry, or whose `start_at`, is due."""

from sqlalchemy import Connection

from overnight_server.domain.lifecycle import LifecycleEvent, sources, target
from overnight_server.fault_points import fault
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement

BATCH = 500


def promote(db: Db) -> int:
    """Make tasks ready whose retry or start is due; return their number.

    Each batch is a transaction of its own. A pass that takes long stops, and the next one goes on.
    """
    limit, total = PassLimit(), 0
    while True:
        moved = db.atomically(_promote_batch)
        fault("promote.after_commit")
        total += moved
        if moved < BATCH or limit.is_over:
            return total


def _promote_batch(tx: Connection) -> int:
    due = tx.execute(statement("due_tasks"), {"limit": BATCH}).all()
    if not due:
        return 0
    lanes.lock(tx, [row.user_id for row in due])
    moved = tx.execute(
        statement("promote"),
        {
            "tasks": [row.id for row in due],
            "sources": sources(LifecycleEvent.PROMOTE),
            "start_sources": sources(LifecycleEvent.UNBLOCK),
            "target": target(LifecycleEvent.PROMOTE),
        },
    )
    fault("promote.before_commit")
    return moved.rowcount
