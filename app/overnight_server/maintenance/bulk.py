"""Working off bulk operations, a chunk to a transaction.

A chunk holds the user's lane and the operation's row, moves its tasks as the single commands do,
and writes how far it got. Whoever dies leaves the cursor where it was; two at once take turns.
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
from overnight_server.control.bulk import selected_by
from overnight_server.control.cancel import stop
from overnight_server.control.edit import Changes, amend
from overnight_server.control.graphs import bring_back
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
from overnight_server.outcome.settle import follow_cancelled
from overnight_server.store import lanes
from overnight_server.store.batched_statements import Call
from overnight_server.store.db import DatabaseUnreachable, Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import Event, emit

# A user's lane is locked while a chunk is moved, and claims pass it over meanwhile.
CHUNK: Final = 50
# How many rows a chunk looks at to find them.
LOOK: Final = 2_000
# Users served in a pass, and chunks beyond the first that each of them gets: the other sweeps wait.
USERS: Final = 100
FURTHER_CHUNKS: Final = 40
# What holds for whoever names no caps.
USUAL: Final = Caps()


@dataclass(frozen=True)
class _Chunk:
    """What one transaction did; `ended` tells how the operation stands if this was the last."""

    changed: int = 0
    ended: Any = None
    is_last: bool = False


@dataclass
class _Tally:
    """How the tasks of a chunk fared."""

    changed: int = 0
    skipped: int = 0
    refused: Counter[str] = field(default_factory=Counter)


def work_off(db: Db, caps: Caps = USUAL) -> int:
    """Go on with the oldest bulk operation of each user; return how many tasks were changed.

    Everybody gets a chunk before anybody gets a second. One that cannot go on keeps nobody else
    waiting, and is tried again in the next pass. What comes back counts as waiting work: beyond
    the `caps` nothing does, as if each task had been retried by itself.
    """
    heads = db.run_batch(Call("running_bulks", {"limit": USERS}))
    running = [(BulkId(row.id), UserId(row.user_id)) for row in heads]
    left = len(running) + FURTHER_CHUNKS
    total = 0
    while running and left > 0:
        served = running[:left]
        left -= len(served)
        chunks = [(one, _work_chunk(db, *one, caps)) for one in served]
        total += sum(chunk.changed for _, chunk in chunks)
        running = [one for one, chunk in chunks if not chunk.is_last]
    return total


def _work_chunk(db: Db, bulk_id: BulkId, user_id: UserId, caps: Caps) -> _Chunk:
    try:
        chunk = db.atomically(partial(_chunk, bulk_id=bulk_id, user_id=user_id, caps=caps))
    except DatabaseUnreachable:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this operation's alone
        emit(Event.BULK_STUCK, bulk_id=show_bulk(bulk_id), error=error)
        return _Chunk(is_last=True)
    fault("bulk.after_commit")
    if chunk.ended is not None:
        emit(
            Event.BULK_COMPLETED,
            bulk_id=show_bulk(bulk_id),
            changed=chunk.ended.changed,
            skipped=chunk.ended.skipped,
            refused=sum(chunk.ended.refused.values()),
        )
    return chunk


def _chunk(tx: Connection, bulk_id: BulkId, user_id: UserId, caps: Caps) -> _Chunk:
    # The lane first, as everywhere; behind it an operation is one worker's alone.
    lanes.lock(tx, [user_id])
    named = {"bulk_id": bulk_id}
    row = tx.execute(statement("lock_bulk"), named).one_or_none()
    if row is None:
        return _Chunk(is_last=True)
    served = {"user_id": str(user_id), "actor": row.created_by, "key_id": row.key_id}
    tx.execute(statement("set_acting_user"), served)
    page = _page(tx, user_id, row)
    again = partial(bring_back, actor=row.created_by, note=show_bulk(bulk_id), caps=caps)
    tally = _apply(tx, user_id, row, page.tasks, again)
    tx.execute(
        statement("advance_bulk"),
        {
            **named,
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
    return _Chunk(tally.changed, tx.execute(statement("end_bulk"), named).one(), is_last=True)


def _page(tx: Connection, user_id: UserId, row: Any) -> Any:  # noqa: ANN401 - rows of SQLAlchemy
    """Return the next tasks the action applies to, and where to go on."""
    action = Action(row.action)
    newest_first = is_newest_first(action)
    found = (
        statement("bulk_chunk_newest_first")
        if newest_first
        else statement("bulk_chunk_oldest_first")
    )
    wanted = selected_by(TaskFilter.model_validate(row.filter))
    return tx.execute(
        found,
        {
            **wanted.parameters,
            "user_id": user_id,
            "applies_to": applies_to(action),
            "priority": row.priority,
            "cursor": row.cursor,
            "ceiling": row.ceiling,
            "last_event": row.last_event,
            "began_at": row.created_at,
            "look": LOOK,
            "limit": CHUNK,
        },
    ).one()


def _apply(
    tx: Connection,
    user_id: UserId,
    row: Any,  # noqa: ANN401 - a row of SQLAlchemy
    tasks: Sequence[UUID],
    again: partial[Any],
) -> _Tally:
    """Do the action to each of these tasks, by the moves of the single commands.

    `again` is the one that brings a task back.
    """
    tally = _Tally()
    if not tasks:
        return tally
    action = Action(row.action)
    match action:
        case Action.CANCEL:
            stopped = stop(tx, user_id, tasks, reason=STOPPED)
            follow_cancelled(tx, stopped.ended)
            tally.changed = len(stopped.ended) + len(stopped.asked)
            # Settled by its worker since it was chosen.
            tally.skipped = len(tasks) - tally.changed
        case Action.RETRY:
            _each(tx, user_id, tasks, tally, partial(_once, came=set(), again=again))
        case Action.REPRIORITISE:
            _each(tx, user_id, tasks, tally, partial(amend, changes=Changes(priority=row.priority)))
            lanes.unskip_lane(tx, user_id)
        case _:
            assert_never(action)
    return tally


def _once(
    tx: Connection, user_id: UserId, task_id: TaskId, *, came: set[UUID], again: partial[Any]
) -> None:
    """Bring a task back, unless it came back together with another of them."""
    if task_id not in came:
        came.update(again(tx, user_id, task_id))


def _each(
    tx: Connection,
    user_id: UserId,
    tasks: Sequence[UUID],
    tally: _Tally,
    move: partial[Any],
) -> None:
    """Move tasks one by one; a refusal takes back what it had begun, and is counted.

    One that another of them stands in the way of is tried again once that was moved.
    """
    waiting = list(tasks)
    while waiting:
        later = [task for task in waiting if not _moved(tx, user_id, task, tally, move)]
        if len(later) == len(waiting):
            tally.refused[UPSTREAM_ENDED] += len(later)
            return
        waiting = later


def _moved(tx: Connection, user_id: UserId, task: UUID, tally: _Tally, move: partial[Any]) -> bool:
    """Move one task, and count how it fared; False if another stands in its way."""
    try:
        with tx.begin_nested():
            move(tx, user_id, TaskId(task))
    except Refused as refusal:
        reason = reason_of(refusal)
        if reason == UPSTREAM_ENDED:
            return False
        tally.refused[reason] += 1
    else:
        tally.changed += 1
    return True
