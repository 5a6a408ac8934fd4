"""The inbox: tasks that programs wrote as rows in their own database transactions.

A row and the task that it becomes change in one transaction. After a crash either the row still
waits or the task exists, never both and never neither.
"""

import json
from collections.abc import Sequence
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
from overnight.models.tasks import TaskBody
from overnight_server.domain.ids import UserId
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewGraph, NewTask
from overnight_server.intake.submit import insert_graph
from overnight_server.intake.translate_request import new_task
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.after_commit import log_after_commit
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import DatabaseUnreachable, Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, emit

# A user's lane is locked while a batch is inserted, and claims skip the lane meanwhile.
BATCH = 20
USERS = 100
DELAY_SECONDS = 5
SOURCE = "inbox"
# Errors that end by themselves: the user's rows are tried again later, in their order.
TEMPORARY = (TooManyPending, MonthlyLimitReached, QueueFull)
# Errors of one row: it is marked as refused, and the other rows are not affected.
INVALID_ROW = (
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
    """How many rows of a user one transaction settled, and which limit stopped it, if one did."""

    settled: int = 0
    stopped_by: Refused | None = None


def process_inbox(db: Db, settings: Settings) -> int:
    """Submit due rows, one batch of a user per transaction; return the number of rows handled.

    Each user gets one batch before any user gets a second, and further batches while the pass has
    time. A row that cannot become a task is kept with the reason. A limit of a user delays that
    user's rows; the limit of the whole deployment ends the pass. An unexpected error with one
    user's rows does not affect the others.
    """
    heads = db.run_batch(StatementCall("inbox_heads", {"limit": USERS}))
    waiting = [UserId(row.user_id) for row in heads]
    limit, total = PassLimit(), 0
    while waiting:
        served, waiting = waiting, []
        for user_id in served:
            batch = _process_batch(db, user_id, settings)
            total += batch.settled
            if isinstance(batch.stopped_by, QueueFull):
                return total
            if batch.settled == BATCH:
                waiting.append(user_id)
        if limit.is_over:
            break
    return total


def _process_batch(db: Db, user_id: UserId, settings: Settings) -> _Batch:
    try:
        return db.atomically(lambda tx: _submit_rows(tx, user_id, settings))
    except DatabaseUnreachable:
        raise
    except Exception as error:  # noqa: BLE001 - any error concerns this user's rows only
        emit(LogEvent.INBOX_STUCK, user_id=user_id, error=error)
        return _Batch()


def _submit_rows(tx: Connection, user_id: UserId, settings: Settings) -> _Batch:
    # The lane is locked first, as in every submit; it also keeps two sweeps off the same rows.
    lanes.lock(tx, [user_id])
    rows = tx.execute(statement("read_inbox"), {"user_id": user_id, "limit": BATCH}).all()
    if rows and _submit_together(tx, user_id, rows, settings):
        return _Batch(len(rows))
    for settled, row in enumerate(rows):
        try:
            with tx.begin_nested():
                graph = NewGraph([_task(row.task, settings)])
                [submitted] = insert_graph(tx, user_id, graph, Caps.of(settings))
        except TEMPORARY as limit:
            delay = {"row_id": row.id, "seconds": DELAY_SECONDS, "reason": limit.code.lower()}
            tx.execute(statement("delay_inbox"), delay)
            return _Batch(settled, limit)
        except INVALID_ROW as error:
            reason = _error_text(error)
            _settle_rows(tx, [row.id], "refused", error=reason)
            log_after_commit(tx, LogEvent.INBOX_REFUSED, row=row.id, error=reason)
        else:
            _settle_rows(tx, [row.id], "accepted", task_ids=[submitted.task_id])
    return _Batch(len(rows))


def _submit_together(
    tx: Connection, user_id: UserId, rows: Sequence[Any], settings: Settings
) -> bool:
    """Submit rows with one statement; False, and nothing changed, if not all can be accepted."""
    try:
        with tx.begin_nested():
            graph = NewGraph([_task(row.task, settings) for row in rows])
            if not graph.is_plain:
                return False
            submitted = insert_graph(tx, user_id, graph, Caps.of(settings))
            ids = [row.id for row in rows]
            _settle_rows(tx, ids, "accepted", task_ids=[task.task_id for task in submitted])
    except INVALID_ROW:
        return False
    return True


def _task(row_text: str, settings: Settings) -> NewTask:
    """Return the task that a row describes; raise what is wrong with it."""
    body = TaskBody.model_validate({"source": SOURCE, **_parse_row(row_text)})
    return new_task(body, settings, body.idempotency_key)


def _parse_row(row_text: str) -> dict[str, Any]:
    """Return the fields of a row; Postgres stores numbers and depths that Python refuses."""
    try:
        fields: dict[str, Any] = json.loads(row_text)
    except (ValueError, RecursionError):
        raise InvalidRequest(
            "task",
            "is nested too deep or holds a number with too many digits",
            legal=f"at most {MAX_DEPTH} levels, numbers within 64 bits",
        ) from None
    return fields


def _settle_rows(
    tx: Connection,
    row_ids: Sequence[int],
    outcome: str,
    *,
    task_ids: Sequence[UUID] = (),
    error: str | None = None,
) -> None:
    tx.execute(
        statement("settle_inbox"),
        {"rows": list(row_ids), "outcome": outcome, "tasks": list(task_ids), "error": error},
    )


def _error_text(error: Exception) -> str:
    """Return what is wrong with a row, field by field, without the values of the row."""
    if isinstance(error, ValidationError):
        faults: Sequence[Any] = error.errors(
            include_url=False, include_context=False, include_input=False
        )
        return "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'task'}: {fault['msg']}" for fault in faults
        )
    if isinstance(error, Refused):
        return error.message
    return "a value cannot be stored by the database"
