"""Run bulk operations, one chunk per transaction.

A chunk locks the user's lane and the operation's row, changes its tasks with the functions of the
single commands, and stores the cursor. A crash leaves the cursor as it was; two sweeps at once
wait for each other.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, assert_never
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import Refused
from overnight.models.bulk import TaskFilter
from overnight_server.control.bulk import selection_of
from overnight_server.control.cancel import cancel_tasks
from overnight_server.control.edit import TaskEdit, edit_task
from overnight_server.control.retry import retry_task
from overnight_server.domain.bulk import (
    UPSTREAM_ENDED,
    Action,
    applies_to,
    is_newest_first,
    reason_of,
)
from overnight_server.domain.graphs import STOPPED
from overnight_server.domain.ids import BulkId, TaskId, UserId, show_bulk
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps
from overnight_server.outcome.settle import resolve_cancelled
from overnight_server.store import lanes
from overnight_server.store.after_commit import log_after_commit
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import DatabaseUnreachable, Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, emit

# A user's lane is locked while a chunk is changed, and claims skip the lane meanwhile.
CHUNK: Final = 50
# How many rows a chunk reads to find its tasks.
MAX_ROWS_READ: Final = 2_000
# Users of one pass. Each gets a first chunk, however long that takes.
USERS: Final = 25
DEFAULT_CAPS: Final = Caps()


@dataclass(frozen=True)
class _Chunk:
    """How many tasks a chunk changed, and whether it was the last of its operation."""

    changed: int = 0
    is_last: bool = False


@dataclass
class _Tally:
    """How many tasks of a chunk were changed, skipped, and refused by reason."""

    changed: int = 0
    skipped: int = 0
    refused: Counter[str] = field(default_factory=Counter)


def run_bulks(db: Db, caps: Caps = DEFAULT_CAPS) -> int:
    """Continue the oldest bulk operation of each user; return how many tasks were changed.

    Each user gets one chunk before any user gets a second, and further chunks while the pass has
    time. An operation that fails does not affect the others, and the next pass tries it again.
    Retried tasks count as waiting work: those that exceed the `caps` are refused, as if each had
    been retried by itself.
    """
    heads = db.run_batch(StatementCall("running_bulks", {"limit": USERS}))
    running = [(BulkId(row.id), UserId(row.user_id)) for row in heads]
    limit, total = PassLimit(), 0
    while running:
        chunks = [(bulk, _run_chunk(db, *bulk, caps)) for bulk in running]
        total += sum(chunk.changed for _, chunk in chunks)
        running = [bulk for bulk, chunk in chunks if not chunk.is_last]
        if limit.is_over:
            break
    return total


def _run_chunk(db: Db, bulk_id: BulkId, user_id: UserId, caps: Caps) -> _Chunk:
    try:
        chunk = db.atomically(partial(_chunk, bulk_id=bulk_id, user_id=user_id, caps=caps))
    except DatabaseUnreachable:
        raise
    except Exception as error:  # noqa: BLE001 - any error concerns this operation only
        emit(LogEvent.BULK_STUCK, bulk_id=show_bulk(bulk_id), error=error)
        return _Chunk(is_last=True)
    fault("bulk.after_commit")
    return chunk


def _chunk(tx: Connection, bulk_id: BulkId, user_id: UserId, caps: Caps) -> _Chunk:
    # The lane is locked first, as everywhere; then no other sweep works on the operation.
    lanes.lock(tx, [user_id])
    params = {"bulk_id": bulk_id}
    row = tx.execute(statement("lock_bulk"), params).one_or_none()
    if row is None:
        return _Chunk(is_last=True)
    acting_user = {
        "user_id": str(user_id),
        "actor": row.created_by,
        "key_id": row.key_id,
        "traceparent": "",
    }
    tx.execute(statement("set_acting_user"), acting_user)
    page = _next_page(tx, user_id, row)
    retry = partial(retry_task, actor=row.created_by, note=show_bulk(bulk_id), caps=caps)
    tally = _apply(tx, user_id, row, page.tasks, retry)
    tx.execute(
        statement("advance_bulk"),
        {
            **params,
            "cursor": page.cursor,
            "done": len(page.tasks) + page.passed_over,
            "changed": tally.changed,
            "skipped": tally.skipped + page.passed_over,
            "refused": json.dumps(Counter(row.refused) + tally.refused),
        },
    )
    fault("bulk.before_commit")
    if page.cursor is not None:
        return _Chunk(tally.changed)
    ended = tx.execute(statement("end_bulk"), params).one()
    log_after_commit(
        tx,
        LogEvent.BULK_COMPLETED,
        bulk_id=show_bulk(bulk_id),
        changed=ended.changed,
        skipped=ended.skipped,
        refused=sum(ended.refused.values()),
    )
    return _Chunk(tally.changed, is_last=True)


def _next_page(tx: Connection, user_id: UserId, row: Any) -> Any:  # noqa: ANN401 - rows of SQLAlchemy
    """Return the next tasks that the action applies to, and the cursor behind them."""
    action = Action(row.action)
    newest_first = is_newest_first(action)
    page = (
        statement("bulk_chunk_newest_first")
        if newest_first
        else statement("bulk_chunk_oldest_first")
    )
    selection = selection_of(TaskFilter.model_validate(row.filter))
    return tx.execute(
        page,
        {
            **selection.parameters,
            "user_id": user_id,
            "applies_to": applies_to(action),
            "priority": row.priority,
            "cursor": row.cursor,
            "ceiling": row.ceiling,
            "last_event": row.last_event,
            "began_at": row.created_at,
            "look": MAX_ROWS_READ,
            "limit": CHUNK,
        },
    ).one()


def _apply(
    tx: Connection,
    user_id: UserId,
    row: Any,  # noqa: ANN401 - a row of SQLAlchemy
    tasks: Sequence[UUID],
    retry: partial[Any],
) -> _Tally:
    """Apply the operation's action to these tasks, with the functions of the single commands."""
    tally = _Tally()
    if not tasks:
        return tally
    action = Action(row.action)
    match action:
        case Action.CANCEL:
            cancelled = cancel_tasks(tx, user_id, tasks, actor=row.created_by, reason=STOPPED)
            resolve_cancelled(tx, cancelled.cancelled)
            tally.changed = cancelled.count
            # The others have ended since they were selected.
            tally.skipped = len(tasks) - tally.changed
        case Action.RETRY:
            _apply_to_each(tx, user_id, tasks, tally, partial(_retry, revived=set(), retry=retry))
        case Action.REPRIORITISE:
            edit = partial(edit_task, changes=TaskEdit(priority=row.priority))
            _apply_to_each(tx, user_id, tasks, tally, edit)
            lanes.unskip_lane(tx, user_id)
        case _:
            assert_never(action)
    return tally


def _retry(
    tx: Connection, user_id: UserId, task_id: TaskId, *, revived: set[UUID], retry: partial[Any]
) -> None:
    """Retry a task, unless it was revived together with another task of the chunk."""
    if task_id not in revived:
        revived.update(retry(tx, user_id, task_id))


def _apply_to_each(
    tx: Connection,
    user_id: UserId,
    tasks: Sequence[UUID],
    tally: _Tally,
    change: partial[Any],
) -> None:
    """Change the tasks one by one; a refusal undoes only its own task and is counted.

    A task whose parent must be retried first is tried again after the others.
    """
    waiting = list(tasks)
    while waiting:
        blocked = [task for task in waiting if not _try_change(tx, user_id, task, tally, change)]
        if len(blocked) == len(waiting):
            tally.refused[UPSTREAM_ENDED] += len(blocked)
            return
        waiting = blocked


def _try_change(
    tx: Connection, user_id: UserId, task: UUID, tally: _Tally, change: partial[Any]
) -> bool:
    """Change one task and count the result; return False if a parent must be changed first."""
    try:
        with tx.begin_nested():
            change(tx, user_id, TaskId(task))
    except Refused as refusal:
        reason = reason_of(refusal)
        if reason == UPSTREAM_ENDED:
            return False
        tally.refused[reason] += 1
    else:
        tally.changed += 1
    return True
