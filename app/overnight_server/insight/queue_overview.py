"""The whole queue at a glance, for operators: what waits, what runs, which locks are held.

What waits is summed over the lanes and what runs is bounded by the slots there are, so looking
costs the same behind any backlog. Only the split by priority counts tasks, and it stops at
`MOST_URGENT`.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from overnight_server.insight.health import DEFAULT_LIVENESS
from overnight_server.insight.locks import LockView, list_locks
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

MOST_URGENT = 10_000


@dataclass(frozen=True)
class PendingView:
    """What waits; `high` is priority 1 and 2, counted up to MOST_URGENT, `normal` the rest."""

    high: int
    normal: int
    total: int


@dataclass(frozen=True)
class ActiveView:
    """What holds a slot; a bundle of quick tasks holds one slot together."""

    slots_used: int
    slots_max: int
    by_project: dict[str, int]
    by_user: dict[str, int]


@dataclass(frozen=True)
class QueueOverviewView:
    """The queue, the slots and the locks of the whole deployment."""

    pending: PendingView
    active: ActiveView
    locks: list[LockView]

    def document(self) -> dict[str, Any]:
        """Return it in the words of the per-user queue's design."""
        return {
            "pending": asdict(self.pending),
            "active": asdict(self.active),
            "user_locks": {
                "active": len(self.locks),
                "details": [asdict(lock) for lock in self.locks],
            },
        }

    def capacity(self) -> dict[str, Any]:
        """Return the slots alone, in the words of the per-user queue's design."""
        used, most = self.active.slots_used, self.active.slots_max
        return {
            "slots": {"max": most, "used": used, "available": max(0, most - used)},
            "by_project": self.active.by_project,
            "by_user": self.active.by_user,
        }


def queue_overview(
    db: Db, *, slots_max: int | None = None, liveness: timedelta = DEFAULT_LIVENESS
) -> QueueOverviewView:
    """Return the state of all queues; without a slot cap, the live slots are the limit."""
    pending, active = db.atomically(lambda tx: (_pending(tx), _active(tx, slots_max, liveness)))
    return QueueOverviewView(pending, active, list_locks(db))


def _pending(tx: Connection) -> PendingView:
    total = lanes.depth(tx)
    urgent = int(tx.execute(statement("view_urgent"), {"limit": MOST_URGENT}).scalar_one())
    return PendingView(high=min(urgent, total), normal=max(0, total - urgent), total=total)


def _active(tx: Connection, slots_max: int | None, liveness: timedelta) -> ActiveView:
    rows = tx.execute(statement("view_active")).all()
    live = tx.execute(statement("view_workers"), {"liveness": liveness.total_seconds()}).one().slots
    by_project: Counter[str] = Counter()
    by_user: Counter[str] = Counter()
    bundles = {bundle for row in rows for bundle in row.bundles if bundle is not None}
    for row in rows:
        by_user[row.user_name] += row.tasks
        if row.project_id is not None:
            by_project[row.project_id] += row.tasks
    return ActiveView(
        slots_used=sum(row.singles for row in rows) + len(bundles),
        slots_max=int(live) if slots_max is None else slots_max,
        by_project=dict(by_project),
        by_user=dict(by_user),
    )
