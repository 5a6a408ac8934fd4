"""The queue of the whole deployment, for operators: what waits, what runs, which locks are held.

Waiting tasks are summed over the lanes, and running tasks are bounded by the slots, so the cost
does not grow with the backlog. Only the split by priority counts tasks, up to `MAX_COUNTED`.
"""

from collections import Counter
from datetime import timedelta

from sqlalchemy import Connection

from overnight.models.admin import LockSummary, PendingCounts, QueueOverview, SlotUsage
from overnight_server.insight.locks import list_locks
from overnight_server.insight.workers import DEFAULT_LIVENESS
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

MAX_COUNTED = 10_000


def queue_overview(
    db: Db, *, slots_max: int | None = None, liveness: timedelta = DEFAULT_LIVENESS
) -> QueueOverview:
    """Return the state of all queues; without `slots_max`, the limit is the live workers' slots."""
    pending, active = db.atomically(lambda tx: (_pending(tx), _active(tx, slots_max, liveness)))
    locks = list_locks(db)
    return QueueOverview(
        pending=pending, active=active, user_locks=LockSummary(active=len(locks), details=locks)
    )


def _pending(tx: Connection) -> PendingCounts:
    total = lanes.depth(tx)
    urgent = int(tx.execute(statement("view_urgent"), {"limit": MAX_COUNTED}).scalar_one())
    return PendingCounts(high=min(urgent, total), normal=max(0, total - urgent), total=total)


def _active(tx: Connection, slots_max: int | None, liveness: timedelta) -> SlotUsage:
    rows = tx.execute(statement("view_active")).all()
    live = tx.execute(statement("view_workers"), {"liveness": liveness.total_seconds()}).one().slots
    by_project: Counter[str] = Counter()
    by_user: Counter[str] = Counter()
    bundles = {bundle for row in rows for bundle in row.bundles if bundle is not None}
    for row in rows:
        by_user[row.user_name] += row.tasks
        if row.project_id is not None:
            by_project[row.project_id] += row.tasks
    return SlotUsage(
        slots_used=sum(row.singles for row in rows) + len(bundles),
        slots_max=int(live) if slots_max is None else slots_max,
        by_project=dict(by_project),
        by_user=dict(by_user),
    )
