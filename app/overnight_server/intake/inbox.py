"""Taking in what programs left in their own transactions: each row once, or kept with its error.

A row and the task it becomes change in one transaction, so a death at any moment leaves either a
row that waits or a task that exists, and never both or neither.
"""

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic import ValidationError
from sqlalchemy import Connection
from sqlalchemy.exc import DataError, IntegrityError

from overnight.errors import (
    InvalidRequest,
    MonthlyLimitReached,
    QueueFull,
    Refused,
    TooManyPending,
)
from overnight.models.json_values import MAX_DEPTH
from overnight.models.tasks import TaskCreate
from overnight_server.domain.ids import UserId, show_task
from overnight_server.intake.submit import Caps, NewGraph, Submitted, insert_graph
from overnight_server.intake.translate import new_task
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.batched_statements import Call
from overnight_server.store.db import DatabaseUnreachable, Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import Event, emit

# A user's lane is locked while a batch goes in, and claims pass it over meanwhile.
BATCH = 20
USERS = 100
# Batches in a pass beyond everybody's first: the next pass, and with it whoever came since, waits.
FURTHER_BATCHES = 100
HOLD_SECONDS = 5
SOURCE = "inbox"
# A limit passes; whoever is above it waits, with all that came after.
PASSING = (TooManyPending, MonthlyLimitReached, QueueFull)
# Whatever is wrong with a row itself: it must not stand in the way of the others.
UNUSABLE = (
    Refused,
    ValueError,
    TypeError,
    ArithmeticError,
    RecursionError,
    DataError,
    IntegrityError,
)


@dataclass(frozen=True)
class _Batch:
    """What one transaction did: how many rows it settled, what it let in, and why it stopped."""

    settled: int
    tasks: list[tuple[Submitted, str]]
    refused: list[tuple[int, str]]
    held_by: Refused | None = None


def take_in(db: Db, settings: Settings) -> int:
    """Let in the rows that are due, a user's batch to a transaction; return how many were settled.

    Everybody gets a batch before anybody gets a second. Rows that no task can be made of are kept
    with the reason. A limit holds its user's rows back for a while, and the whole system's limit
    everybody's. A user whose rows cannot be gone through keeps nobody else waiting.
    """
    heads = db.at_once(Call("inbox_heads", {"limit": USERS}))
    waiting = [UserId(row.user_id) for row in heads]
    left = len(waiting) + FURTHER_BATCHES
    total = 0
    while waiting and left > 0:
        served, waiting = waiting[:left], []
        left -= len(served)
        for user_id in served:
            batch = _take_batch(db, user_id, settings)
            total += batch.settled
            if isinstance(batch.held_by, QueueFull):
                return total
            if batch.settled == BATCH:
                waiting.append(user_id)
    return total


def _take_batch(db: Db, user_id: UserId, settings: Settings) -> _Batch:
    try:
        batch = db.atomically(lambda tx: _take(tx, user_id, settings))
    except DatabaseUnreachable:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this user's alone
        emit(Event.INBOX_STUCK, user_id=user_id, error=error)
        return _Batch(0, [], [])
    for submitted, source in batch.tasks:
        emit(
            Event.TASK_ADDED,
            queue_id=show_task(submitted.task_id),
            depth=submitted.depth,
            source=source,
        )
    for row_id, reason in batch.refused:
        emit(Event.INBOX_REFUSED, row=row_id, error=reason)
    return batch


def _take(tx: Connection, user_id: UserId, settings: Settings) -> _Batch:
    # The lane first, as every submit does; behind it a user's rows are one sweep's alone.
    lanes.lock(tx, [user_id])
    rows = tx.execute(statement("read_inbox"), {"user_id": user_id, "limit": BATCH}).all()
    batch = _Batch(0, [], [])
    for settled, row in enumerate(rows):
        try:
            with tx.begin_nested():
                submitted, source = _submit(tx, user_id, row.task, settings)
        except PASSING as limit:
            held = {"row_id": row.id, "seconds": HOLD_SECONDS, "reason": limit.code.lower()}
            tx.execute(statement("hold_inbox"), held)
            return _Batch(settled, batch.tasks, batch.refused, limit)
        except UNUSABLE as error:
            batch.refused.append((row.id, _told(error)))
            _settle(tx, row.id, "refused", error=_told(error))
        else:
            _settle(tx, row.id, "accepted", task_id=submitted.task_id)
            if submitted.created:
                batch.tasks.append((submitted, source))
    return _Batch(len(rows), batch.tasks, batch.refused)


def _submit(
    tx: Connection, user_id: UserId, left: str, settings: Settings
) -> tuple[Submitted, str]:
    body = TaskCreate.model_validate({"source": SOURCE, **_read(left)})
    task = new_task(body, settings, body.idempotency_key)
    [submitted] = insert_graph(tx, user_id, NewGraph([task]), Caps.of(settings))
    return submitted, task.source


def _read(left: str) -> dict[str, Any]:
    """Read what a row holds; Postgres keeps numbers and depths that Python does not read."""
    try:
        fields: dict[str, Any] = json.loads(left)
    except (ValueError, RecursionError):
        raise InvalidRequest(
            "task",
            "is nested too deep or holds a number with too many digits",
            legal=f"at most {MAX_DEPTH} levels, numbers within 64 bits",
        ) from None
    return fields


def _settle(
    tx: Connection,
    row_id: int,
    outcome: str,
    *,
    task_id: UUID | None = None,
    error: str | None = None,
) -> None:
    tx.execute(
        statement("settle_inbox"),
        {"row_id": row_id, "outcome": outcome, "task_id": task_id, "error": error},
    )


def _told(error: Exception) -> str:
    """Say what is wrong with a row, field by field, without repeating what it holds."""
    if isinstance(error, ValidationError):
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        places = [".".join(map(str, one["loc"])) or "task" for one in faults]
        return "; ".join(f"{at}: {one['msg']}" for at, one in zip(places, faults, strict=True))
    if isinstance(error, Refused):
        return error.message
    return "a value cannot be stored by the database"
