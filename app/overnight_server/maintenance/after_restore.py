"""Make a database that was restored to an earlier instant safe to use again.

Runs that began after that instant are not in the database, and runs that were open at it may have
ended. Their workers, and whoever they called, know the task and the number of the claim. So every
open claim ends, and later claims get numbers that no claim had: no result from before is accepted,
and a key made of a task and a number never names two runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Row

from overnight_server.control.pauses import PauseSubject, pause
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId, show_task
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
class Restored:
    """What was done, and what may have happened since `restored_to` without being in the database.

    `waiting` is the number of tasks that waited then: they too may have run.
    """

    restored_to: datetime | None
    now: datetime
    runs: Sequence[RestoredRun]
    waiting: int
    tasks_with_new_epochs: int


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
    return Restored(state.restored_to, state.now, runs, state.waiting, _skip_epochs(db))


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


def _skip_batch(params: dict[str, object], tx: Connection) -> Row[Any]:
    return tx.execute(statement("skip_epochs"), params).one()
