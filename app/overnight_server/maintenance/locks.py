"""Release locks by force: one that an operator names, or all that nobody renewed in time.

A lock is released by ending the claim that holds it: the worker can no longer write, its run is
killed, and the task returns to the queue and spends no attempt.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Self
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import LockNotHeld, TaskNotFound
from overnight_server.dispatch.publish import Publisher
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.results import Interrupted
from overnight_server.domain.retry import RetryRules
from overnight_server.domain.verdicts import TaskHistory, judge
from overnight_server.maintenance.reap import reap
from overnight_server.outcome.settle import Ending, record
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, emit

BATCH = 500
RELEASED = "lock_released"
Kill = Callable[[Claim], None]


@dataclass(frozen=True)
class LeaseTimes:
    """How long claims and runs are held without renewal."""

    claim_ttl: timedelta
    lease: timedelta

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the times that the settings give."""
        return cls(
            claim_ttl=timedelta(seconds=settings.claim_ttl),
            lease=timedelta(seconds=settings.lease_seconds),
        )


@dataclass(frozen=True)
class ReleasedLock:
    """A task whose locks were released, and their keys."""

    task_id: TaskId
    keys: Sequence[str]


@contextmanager
def killing(settings: Settings) -> Iterator[Kill]:
    """Yield a function that kills a run; without a broker the run stops at its next heartbeat."""
    if settings.redis_url is None:
        yield lambda _claim: None
        return
    publisher = Publisher(settings)
    try:
        yield publisher.terminate
    finally:
        publisher.close()


def release_lock(
    db: Db, user_id: UserId, task_id: TaskId, *, actor: str, kill: Kill
) -> ReleasedLock:
    """End the claim that holds a task's locks, whoever holds it, and kill its run.

    Raises LockNotHeld if the task holds no lock, and TaskNotFound if the user has no such task.
    """
    ended = db.atomically(lambda tx: _end(tx, user_id, task_id, actor))
    if ended is None:
        row = db.atomically(
            lambda tx: tx.execute(statement("owner_of_task"), {"task_id": task_id}).one_or_none()
        )
        if row is None or row.user_id != user_id:
            raise TaskNotFound
        raise LockNotHeld(row.state)
    return _finish(db, ended, actor, kill)


def cleanup_stale(
    db: Db,
    *,
    max_age: timedelta,
    times: LeaseTimes,
    actor: str,
    kill: Kill,
    project: str | None = None,
) -> int:
    """End every claim with a lock that nobody renewed for `max_age`; return the number of claims.

    Claims whose lease has expired are settled by the reaper, which knows how their runs ended. The
    others are handed back. A claim that was renewed meanwhile stays.
    """
    params = {
        "max_age": max_age.total_seconds(),
        "claim_ttl": times.claim_ttl.total_seconds(),
        "lease": times.lease.total_seconds(),
        "project": project,
        "limit": BATCH,
    }
    stale = db.atomically(lambda tx: tx.execute(statement("stale_locks"), params).all())
    if any(row.expired for row in stale):
        reap(db)

    def still_stale(tx: Connection, claim: Claim) -> bool:
        # Checked again under the lock: a heartbeat may have come since the first read.
        rows = tx.execute(statement("stale_locks"), params)
        return (claim.task_id, claim.epoch) in {(row.id, row.epoch) for row in rows}

    unexpired = [(UserId(row.user_id), TaskId(row.id)) for row in stale if not row.expired]
    for user_id, task_id in unexpired:
        end = partial(_end, user_id=user_id, task_id=task_id, actor=actor, only_if=still_stale)
        ended = db.atomically(end)
        if ended is not None:
            _finish(db, ended, actor, kill)
    return len(stale) - _still_held(db, {(row.id, row.epoch) for row in stale})


@dataclass(frozen=True)
class _EndedClaim:
    """A claim that was ended, and the lock keys that it held."""

    ending: Ending
    keys: Sequence[str]


def _always(_tx: Connection, _claim: Claim) -> bool:
    return True


def _end(
    tx: Connection,
    user_id: UserId,
    task_id: TaskId,
    actor: str,
    only_if: Callable[[Connection, Claim], bool] = _always,
) -> _EndedClaim | None:
    lanes.lock(tx, [user_id])
    tx.execute(statement("set_actor"), {"actor": actor})
    params = {"user_id": user_id, "task_id": task_id}
    row = tx.execute(statement("lock_holder"), params).one_or_none()
    if row is None:
        return None
    claim = Claim(TaskId(row.id), row.epoch, row.token)
    if not only_if(tx, claim):
        return None
    result = Interrupted(RELEASED)
    ending = Ending(
        claim,
        user_id,
        row.claimed_by,
        result,
        judge(TaskHistory(0, 1, RetryRules()), result, 0.0),
        bundle=row.bundle,
    )
    won = record(tx, [ending], keep_stale=False).won
    return _EndedClaim(ending, row.locks) if won else None


def _finish(db: Db, ended: _EndedClaim, actor: str, kill: Kill) -> ReleasedLock:
    """Log the release, wake the dispatchers and kill the run, which can no longer write."""
    claim = ended.ending.claim
    emit(
        LogEvent.LOCK_RELEASED,
        lock_key=",".join(ended.keys),
        queue_id=show_task(claim.task_id),
        actor=actor,
    )
    db.wake()
    kill(claim)
    return ReleasedLock(claim.task_id, ended.keys)


def _still_held(db: Db, claims: set[tuple[UUID, int]]) -> int:
    params = {"tasks": [task_id for task_id, _ in claims]}
    rows = db.atomically(lambda tx: tx.execute(statement("active_claims"), params).all())
    return len(claims & {(row.id, row.epoch) for row in rows})
