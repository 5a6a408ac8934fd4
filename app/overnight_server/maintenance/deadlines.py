"""Deadlines: tasks that can no longer meet theirs end, and those near it grow more urgent."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeAlias
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.lifecycle import WAITING, Event, sources, target
from overnight_server.domain.priority import DEADLINE_HORIZON
from overnight_server.outcome.settle import dead_letter_unstarted
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

BATCH = 500
# Points that may be missing from a stored key before it is written anew.
STEP = 0.1
# Nobody runs these yet: a task that runs may finish, however late.
UNSTARTED = sorted(set(sources(Event.DEAD_LETTER)) & WAITING)
Place: TypeAlias = tuple[datetime, UUID]


@dataclass(frozen=True)
class _Page:
    """What one page came to, and where the next begins, if there is one."""

    changed: int
    last: Place | None


def dead_letter_passed(db: Db) -> int:
    """End every waiting task whose deadline has passed, a batch to a transaction; how many."""
    total = 0
    while True:
        found, ended = db.atomically(_end_batch)
        total += ended
        # A batch nobody could end has been started or ended by others since we looked.
        if found < BATCH or not ended:
            return total


def raise_deadline_priority(db: Db) -> int:
    """Write the order anew for tasks whose deadline has come nearer; return how many changed."""
    total = 0
    after: Place | None = None
    while True:
        page = db.atomically(partial(_raise_page, after=after))
        total += page.changed
        if page.last is None:
            return total
        after = page.last


def _end_batch(tx: Connection) -> tuple[int, int]:
    found = tx.execute(statement("passed_deadlines"), {"limit": BATCH}).all()
    if not found:
        return 0, 0
    lanes.lock(tx, [row.user_id for row in found])
    ended = (
        tx.execute(
            statement("dead_letter_passed"),
            {
                "tasks": [row.id for row in found],
                "sources": UNSTARTED,
                "target": target(Event.DEAD_LETTER),
            },
        )
        .scalars()
        .all()
    )
    dead_letter_unstarted(tx, ended)
    return len(found), len(ended)


def _raise_page(tx: Connection, after: Place | None) -> _Page:
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
    sharper = tx.execute(
        statement("raise_deadline_priority"), {"tasks": [row.id for row in rows], "step": STEP}
    )
    is_full = len(rows) == BATCH
    return _Page(sharper.rowcount, (rows[-1].deadline_at, rows[-1].id) if is_full else None)
