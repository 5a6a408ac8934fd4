"""Deadlines: dead-letter tasks that missed theirs, and raise the priority of tasks near theirs."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeAlias
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.lifecycle import WAITING, LifecycleEvent, sources, target
from overnight_server.domain.priority import DEADLINE_HORIZON
from overnight_server.outcome.settle import dead_letter_unstarted
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement

BATCH = 500
DEADLINE_EXCEEDED = "deadline_exceeded"
# A stored sort key is updated when it is off by this many points.
STEP = 0.1
# Tasks that nobody runs; of these, the statements leave out tasks that started in time.
UNSTARTED = sorted(set(sources(LifecycleEvent.DEAD_LETTER)) & WAITING)
Cursor: TypeAlias = tuple[datetime, UUID]


@dataclass(frozen=True)
class _Page:
    """How many tasks of a page changed, and the cursor of the next page, if there is one."""

    changed: int
    last: Cursor | None


def dead_letter_passed(db: Db) -> int:
    """Dead-letter every task that was not started by its deadline; return their number."""
    limit, total = PassLimit(), 0
    while True:
        candidates, ended = db.atomically(_dead_letter_batch)
        total += ended
        # If none of a batch could be ended, others have started or ended them meanwhile.
        if candidates < BATCH or not ended or limit.is_over:
            return total


def raise_deadline_priority(db: Db) -> int:
    """Update the sort key of tasks whose deadline is near; return how many changed."""
    total = 0
    after: Cursor | None = None
    while True:
        page = db.atomically(partial(_raise_page, after=after))
        total += page.changed
        if page.last is None:
            return total
        after = page.last


def _dead_letter_batch(tx: Connection) -> tuple[int, int]:
    candidates = tx.execute(statement("passed_deadlines"), {"limit": BATCH}).all()
    if not candidates:
        return 0, 0
    lanes.lock(tx, [row.user_id for row in candidates])
    ended = (
        tx.execute(
            statement("dead_letter_passed"),
            {
                "tasks": [row.id for row in candidates],
                "sources": UNSTARTED,
                "target": target(LifecycleEvent.DEAD_LETTER),
            },
        )
        .scalars()
        .all()
    )
    dead_letter_unstarted(tx, ended, DEADLINE_EXCEEDED)
    return len(candidates), len(ended)


def _raise_page(tx: Connection, after: Cursor | None) -> _Page:
    after_at, after_id = after or (None, None)
    rows = tx.execute(
        statement("near_deadlines"),
        {
            "horizon": DEADLINE_HORIZON.total_seconds(),
            "after_at": after_at,
            "after_id": after_id,
            "limit": BATCH,
        },
    ).all()
    if not rows:
        return _Page(0, None)
    lanes.lock(tx, [row.user_id for row in rows])
    raised = tx.execute(
        statement("raise_deadline_priority"), {"tasks": [row.id for row in rows], "step": STEP}
    )
    is_full = len(rows) == BATCH
    return _Page(raised.rowcount, (rows[-1].deadline_at, rows[-1].id) if is_full else None)
