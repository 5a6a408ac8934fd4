"""What becomes of the submits of a scheduler's jobs, remembered for whoever looks after it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from overnight.errors import MonthlyLimitReached, QueueFull, Refused, TooManyPending
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

QUEUED = "queued"
# One scheduler has no more jobs than this; further ones are queued all the same.
MOST_JOBS = 1_000


@dataclass
class Noted:
    """A submit of a job that is under way; its maker says which task it became."""

    task_id: TaskId | None = None


@contextmanager
def noting(db: Db, user_id: UserId, job: str | None) -> Iterator[Noted]:
    """Remember what becomes of a submit: that it was queued, or why it was skipped.

    In a transaction of its own, after the submit's: a refused submit leaves none.
    """
    noted = Noted()
    try:
        yield noted
    except Refused as refusal:
        if job is not None and (skipped := _skipped(refusal)) is not None:
            _note(db, user_id, job, skipped, None)
        raise
    if job is not None and noted.task_id is not None:
        _note(db, user_id, job, QUEUED, noted.task_id)


def _skipped(refusal: Refused) -> str | None:
    """Return the word for a job that was skipped; a wrong submit was none."""
    match refusal:
        case QueueFull() | TooManyPending():
            return "skipped_queue_full"
        case MonthlyLimitReached():
            return "skipped_monthly_limit"
        case _:
            return None


def _note(db: Db, user_id: UserId, job: str, status: str, task_id: TaskId | None) -> None:
    named = {"user_id": user_id, "name": job, "status": status, "task_id": task_id}
    db.atomically(lambda tx: tx.execute(statement("note_job"), {**named, "limit": MOST_JOBS}))
