"""Claims whose holder stands outside and shows a token: read back, and ended by what it reports."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from overnight.errors import NotStarted, StaleAttempt
from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.ids import TaskId
from overnight_server.domain.lifecycle import State
from overnight_server.domain.results import Result
from overnight_server.outcome.settle import settle
from overnight_server.store.db import Db
from overnight_server.store.run_rows import run_of
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class Held:
    """A claim that is held: what it is about, who holds it, and for how long each sign counts."""

    run: Run
    agent: str
    description: str
    has_begun: bool
    lease: timedelta


def held(db: Db, claim: Claim, usual: timedelta) -> Held:
    """Return what a claim is about; StaleAttempt says that nobody holds it any more.

    The lease is the agent's own, or the usual one for runs of the deployment's workers.
    """
    named = {"task_id": claim.task_id, "epoch": claim.epoch, "token": claim.token}
    row = db.atomically(lambda tx: tx.execute(statement("held_claim"), named).one_or_none())
    if row is None:
        raise StaleAttempt
    lease = usual if row.lease_seconds is None else timedelta(seconds=row.lease_seconds)
    return Held(
        run_of(claim, row), row.claimed_by, row.description, row.state != State.CLAIMED, lease
    )


def begun(db: Db, claim: Claim, usual: timedelta) -> Held:
    """Return what a claim is about whose run has begun, or say that it has not."""
    found = held(db, claim, usual)
    if not found.has_begun:
        raise NotStarted
    return found


def end(db: Db, holding: Held, result: Result) -> None:
    """End a run as its holder says; if the claim is gone by now the result is only kept aside."""
    if not settle(db, holding.run, result, agent=holding.agent):
        raise StaleAttempt
    # A slot is free, and other tasks may have waited for this one.
    db.wake()


def has_ended(db: Db, task_id: TaskId, epoch: int, outcomes: Collection[str]) -> bool:
    """Whether a claim that is over ended in one of these ways."""
    named = {"task_id": task_id, "epoch": epoch}
    row = db.atomically(lambda tx: tx.execute(statement("outcome_of_claim"), named).one_or_none())
    return row is not None and row.outcome in outcomes


def keep_late(db: Db, task_id: TaskId, epoch: int, said: object) -> None:
    """Keep what came for a claim that is over, to be seen and never applied."""
    named = {"task_id": task_id, "epoch": epoch}

    def work(tx: Connection) -> None:
        agent = tx.execute(statement("outcome_of_claim"), named).one().agent
        late = {"agent": agent, "outcome": "late", "result": json.dumps(said)}
        tx.execute(statement("insert_stale_result"), {**named, **late})

    db.atomically(work)
