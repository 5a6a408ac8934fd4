"""The last status of each scheduler job: queued, or why its submit was skipped."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from overnight.errors import MonthlyLimitReached, QueueFull, Refused, TooManyPending
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

QUEUED = "queued"
# The status of at most this many jobs of a user is recorded; tasks of further jobs are queued
# without it.
MAX_JOBS = 1_000


@dataclass
class JobSubmit:
    """A submit of a job in progress; the caller sets the task that it became."""

    task_id: TaskId | None = None


@contextmanager
def recording_job(db: Db, user_id: UserId, job: str | None) -> Iterator[JobSubmit]:
    """Record the outcome of the submit inside this context as the job's status.

    The record is a transaction of its own, because a refused submit commits nothing.
    """
    job_submit = JobSubmit()
    try:
        yield job_submit
    except Refused as refusal:
        if job is not None and (skipped := _skipped_status(refusal)) is not None:
            _record(db, user_id, job, skipped, None)
        raise
    if job is not None and job_submit.task_id is not None:
        _record(db, user_id, job, QUEUED, job_submit.task_id)


def _skipped_status(refusal: Refused) -> str | None:
    """Return the status of a job that a limit skipped; None for an invalid submit."""
    match refusal:
        case QueueFull() | TooManyPending():
            return "skipped_queue_full"
        case MonthlyLimitReached():
            return "skipped_monthly_limit"
        case _:
            return None


def _record(db: Db, user_id: UserId, job: str, status: str, task_id: TaskId | None) -> None:
    params = {"user_id": user_id, "name": job, "status": status, "task_id": task_id}
    db.atomically(
        lambda tx: tx.execute(statement("record_source_job"), {**params, "limit": MAX_JOBS})
    )
