"""Make a database that was restored to an earlier instant safe to use again.

Runs that began after that instant are not in the database, and runs that were open at it may have
ended. Their workers, and whoever they called, know the task and the number of the claim. So every
open claim ends, and later claims get numbers that no claim had: no result from before is accepted,
and a key made of a task and a number never names two runs.

Fire times of schedules that have passed since then may have run too. They are recorded as missed,
and morning reports that are due are left out. Due triggers submit their graphs again: these wait,
because everything is paused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Row

from overnight_server.control.fire_schedules import skip_past
from overnight_server.control.pauses import PauseSubject, pause
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import (
    ScheduleId,
    TaskId,
    UserId,
    show_dag,
    show_schedule,
    show_task,
    show_trigger,
)
from overnight_server.outcome.settle import hand_back
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

BATCH: Final = 500
#: No task has been claimed so often since the instant to which the database was restored.
SKIPPED_EPOCHS: Final = 1_000
#: No table got so many rows with numbers since then.
SKIPPED_NUMBERS: Final = 10_000_000
FIRST_ID: Final = UUID(int=0)
NOTE: Final = "restored from a backup: look at the runs whose effects may exist, then resume"

MAY_HAVE_RUN: Final = "the database was restored to an earlier instant: it may have run before"


class StillConnected(Exception):
    """Other processes use the database."""

    def __init__(self, logins: Sequence[str]) -> None:
        self.logins = logins
        super().__init__(f"Processes are connected to the database as {', '.join(logins)}")


@dataclass(frozen=True)
class RestoredRun:
    """A run that was open in the restored database; what it did since then is not known."""

    task_id: str
    epoch: int
    state: str
    user: str
    type: str
    title: str
    pool: str
    agent: str
    started_at: datetime | None
    external_id: str | None


@dataclass(frozen=True)
class PastSchedule:
    """A schedule whose fire times from `first` to `last` may have run; they are not run again."""

    schedule_id: str
    user: str
    name: str
    fire_times: int
    first: datetime
    last: datetime


@dataclass(frozen=True)
class PastTrigger:
    """A trigger that may have submitted its graph already; it submits it again."""

    trigger_id: str
    user: str
    dag_id: str
    due_at: datetime


@dataclass(frozen=True)
class Restored:
    """What was done, and what may have happened since `restored_to` without being in the database.

    `waiting` is the number of tasks that waited then: they too may have run. `reports` is the
    number of users whose morning report was due; it is left out.
    """

    restored_to: datetime | None
    now: datetime
    runs: Sequence[RestoredRun]
    waiting: int
    tasks_with_new_epochs: int
    schedules: Sequence[PastSchedule]
    triggers: Sequence[PastTrigger]
    reports: int


def check_alone(db: Db) -> None:
    """Raise StillConnected if another process uses the database."""
    others = db.atomically(lambda tx: tx.execute(statement("other_connections")).scalars().all())
    if others:
        raise StillConnected(others)


def after_restore(db: Db, *, actor: str) -> Restored:
    """Pause the deployment, end every open claim, and let later claims have new numbers.

    Once is enough; twice does no harm. No other process may use the database meanwhile.
    """
    state = db.atomically(lambda tx: tx.execute(statement("state_of_restore")).one())
    # First, because what follows makes events and notifications.
    db.atomically(lambda tx: tx.execute(statement("skip_event_ids"), {"number": SKIPPED_NUMBERS}))
    pause(db, PauseSubject(), actor=actor, note=NOTE)
    runs = _end_claims(db)
    return Restored(
        restored_to=state.restored_to,
        now=state.now,
        runs=runs,
        waiting=state.waiting,
        tasks_with_new_epochs=_skip_epochs(db),
        schedules=_skip_fire_times(db),
        triggers=db.atomically(_due_triggers),
        reports=_skip_reports(db),
    )


def _end_claims(db: Db) -> list[RestoredRun]:
    runs: list[RestoredRun] = []
    after = FIRST_ID
    while rows := db.atomically(partial(_open_claims, after=after)):
        claims = [Claim(TaskId(row.id), row.epoch, row.token) for row in rows]
        hand_back(db, claims, agent="restore", reason="restored")
        runs += [_shown(row) for row in rows]
        after = rows[-1].id
    return runs


def _open_claims(tx: Connection, *, after: UUID) -> Sequence[Row[Any]]:
    return tx.execute(statement("open_claims"), {"after_id": after, "limit": BATCH}).all()


def _shown(row: Row[Any]) -> RestoredRun:
    return RestoredRun(
        task_id=show_task(row.id),
        epoch=row.epoch,
        state=row.state,
        user=row.user,
        type=row.type,
        title=row.title,
        pool=row.pool,
        agent=row.claimed_by,
        started_at=row.started_at,
        external_id=row.external_id,
    )


def _skip_epochs(db: Db) -> int:
    total, after = 0, FIRST_ID
    while after is not None:
        params = {"after_id": after, "number": SKIPPED_EPOCHS, "limit": BATCH}
        row = db.atomically(partial(_skip_batch, params))
        total += row.tasks
        after = row.last_id
    return total


def _skip_fire_times(db: Db) -> list[PastSchedule]:
    schedules: list[PastSchedule] = []
    after = FIRST_ID
    while rows := db.atomically(partial(_schedules_with_past_fires, after=after)):
        schedules += [found for row in rows if (found := _skip_schedule(db, row)) is not None]
        after = rows[-1].id
    return schedules


def _schedules_with_past_fires(tx: Connection, *, after: UUID) -> Sequence[Row[Any]]:
    params = {"after_id": after, "limit": BATCH}
    return tx.execute(statement("schedules_with_past_fires"), params).all()


def _skip_schedule(db: Db, row: Row[Any]) -> PastSchedule | None:
    skip = partial(
        skip_past,
        user_id=UserId(row.user_id),
        schedule_id=ScheduleId(row.id),
        reason=MAY_HAVE_RUN,
    )
    skipped: list[datetime] = []
    while batch := db.atomically(skip):
        skipped += batch
    if not skipped:
        return None
    return PastSchedule(
        schedule_id=show_schedule(row.id),
        user=row.user,
        name=row.name,
        fire_times=len(skipped),
        first=min(skipped),
        last=max(skipped),
    )


def _due_triggers(tx: Connection) -> list[PastTrigger]:
    rows = tx.execute(statement("triggers_that_may_have_fired"))
    return [
        PastTrigger(show_trigger(row.id), row.user, show_dag(row.dag_id), row.due_at)
        for row in rows
    ]


def _skip_reports(db: Db) -> int:
    """Move due report times on by a day without a report; return how many users have one."""
    total = 0
    while moved := db.atomically(
        lambda tx: tx.execute(statement("due_reports"), {"limit": BATCH}).all()
    ):
        total += len(moved)
    return total


def _skip_batch(params: dict[str, object], tx: Connection) -> Row[Any]:
    return tx.execute(statement("skip_epochs"), params).one()
