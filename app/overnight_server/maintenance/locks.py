"""Taking locks from their holders: by an operator's word, or because they fell silent.

A lock is never deleted by itself. The claim that holds it is ended: its worker is fenced off, its
run killed, and the task goes back to the queue without having spent anything.
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
from overnight_server.domain.retry import RetryPolicy
from overnight_server.domain.verdicts import Standing, judge
from overnight_server.maintenance.reap import reap
from overnight_server.outcome.settle import Ending, record
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import Event, emit

BATCH = 500
RELEASED = "lock_released"
Kill = Callable[[Claim, UUID | None], None]


@dataclass(frozen=True)
class Clocks:
    """How long claims and runs last without renewal."""

    claim_ttl: timedelta
    lease: timedelta

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Take the clocks from the settings."""
        return cls(
            claim_ttl=timedelta(seconds=settings.claim_ttl),
            lease=timedelta(seconds=settings.lease_seconds),
        )


@dataclass(frozen=True)
class Released:
    """A task that lost its locks, and which they were."""

    task_id: TaskId
    keys: Sequence[str]


@contextmanager
def killing(settings: Settings) -> Iterator[Kill]:
    """Offer a way to kill runs; without a broker their next heartbeat tells them to stop."""
    if settings.redis_url is None:
        yield lambda _claim, _bundle: None
        return
    publisher = Publisher(settings)
    try:
        yield publisher.terminate
    finally:
        publisher.close()


def release_lock(db: Db, user_id: UserId, task_id: TaskId, *, actor: str, kill: Kill) -> Released:
    """End the claim behind a user's lock by force, whoever holds it; the act bears a name.

    Raises LockNotHeld if the task holds none, and TaskNotFound if it is another user's.
    """
    ended = db.atomically(lambda tx: _end(tx, user_id, task_id, actor))
    if ended is None:
        row = db.atomically(
            lambda tx: tx.execute(statement("owner_of_task"), {"task_id": task_id}).one_or_none()
        )
        if row is None or row.user_id != user_id:
            raise TaskNotFound
        raise LockNotHeld(row.state)
    return _finish(ended, actor, kill)


def cleanup_stale(
    db: Db,
    *,
    max_age: timedelta,
    clocks: Clocks,
    actor: str,
    kill: Kill,
    project: str | None = None,
) -> int:
    """End every claim with a lock that nobody renewed for `max_age`; return how many.

    Those whose lease is over are the reaper's, which knows what their runs were told or ran into.
    The others are handed back. A claim renewed in the meantime is left alone.
    """
    asked = {
        "max_age": max_age.total_seconds(),
        "claim_ttl": clocks.claim_ttl.total_seconds(),
        "lease": clocks.lease.total_seconds(),
        "project": project,
        "limit": BATCH,
    }
    found = db.atomically(lambda tx: tx.execute(statement("stale_locks"), asked).all())
    if any(row.expired for row in found):
        reap(db)

    def still_stale(tx: Connection, claim: Claim) -> bool:
        # Asked with the row held: a heartbeat may have come in since the first look.
        rows = tx.execute(statement("stale_locks"), asked)
        return (claim.task_id, claim.epoch) in {(row.id, row.epoch) for row in rows}

    silent = [(UserId(row.user_id), TaskId(row.id)) for row in found if not row.expired]
    for user_id, task_id in silent:
        end = partial(_end, user_id=user_id, task_id=task_id, actor=actor, only_if=still_stale)
        one = db.atomically(end)
        if one is not None:
            _finish(one, actor, kill)
    return len(found) - _still_held(db, {(row.id, row.epoch) for row in found})


@dataclass(frozen=True)
class _Ended:
    """A claim just ended, and the keys it held."""

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
) -> _Ended | None:
    lanes.lock(tx, [user_id])
    tx.execute(statement("set_actor"), {"actor": actor})
    named = {"user_id": user_id, "task_id": task_id}
    row = tx.execute(statement("lock_holder"), named).one_or_none()
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
        judge(Standing(0, 1, RetryPolicy()), result, 0.0),
        bundle=row.bundle,
    )
    won = record(tx, [ending], keep_stale=False).won
    return _Ended(ending, row.locks) if won else None


def _finish(ended: _Ended, actor: str, kill: Kill) -> Released:
    """Tell of it and kill the run; the row has moved already, so its holder can do no harm."""
    claim = ended.ending.claim
    emit(
        Event.LOCK_RELEASED,
        lock_key=",".join(ended.keys),
        queue_id=show_task(claim.task_id),
        actor=actor,
    )
    kill(claim, ended.ending.bundle)
    return Released(claim.task_id, ended.keys)


def _still_held(db: Db, claims: set[tuple[UUID, int]]) -> int:
    named = {"tasks": [task_id for task_id, _ in claims]}
    rows = db.atomically(lambda tx: tx.execute(statement("active_claims"), named).all())
    return len(claims & {(row.id, row.epoch) for row in rows})
