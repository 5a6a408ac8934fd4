"""Taking tasks back from holders that fell silent or would not stop."""

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.lifecycle import State
from overnight_server.domain.results import (
    Died,
    Expired,
    Interrupted,
    Lost,
    Result,
    Stopped,
    TimedOut,
)
from overnight_server.domain.verdicts import Standing, judge
from overnight_server.fault_points import fault
from overnight_server.outcome.settle import Ending, record
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.run_rows import failures_of, policy_of
from overnight_server.store.statements import statement
from overnight_server.telemetry import Event, emit

BATCH = 500
ENDED_BY_FORCE = "ended_by_force"


def reap(db: Db) -> int:
    """Settle every claim whose lease has run out; return how many.

    Never started: back to the queue for free. Running: what it was told to do (stop), or what it
    ran into (its time), or lost; a crash of the run itself only if an agent outside lives on
    without it.
    """
    return len(_settle_all(db, "expired_claims", {"limit": BATCH}, only_expired=True))


def end_runs_of_the_dead(
    db: Db, claims: Sequence[Claim], *, handling: bool, taken_away: bool = False
) -> int:
    """Settle what a dead process of a living worker had in hand; return how much it still held.

    It is a crash of the run if its handler was at work when the process died, within its lease;
    but if we took the run away, it is handed back.
    """
    found = {
        "tasks": [claim.task_id for claim in claims],
        "tokens": [claim.token for claim in claims],
        "handling": handling,
        "taken_away": taken_away,
        "limit": BATCH,
    }
    return len(_settle_all(db, "runs_of_dead_workers", found, only_expired=False))


def end_overdue(db: Db, *, grace: timedelta, kill: Callable[[Claim, UUID | None], None]) -> int:
    """End runs that beat on past their time or past a stop they were told of, and kill them."""
    found = {"grace": grace.total_seconds(), "limit": BATCH}
    ended = _settle_all(db, "overdue_runs", found, only_expired=False)
    for ending in ended:
        fault("timeouts.before_kill")
        kill(ending.claim, ending.bundle)
    return len(ended)


def retire_agents(db: Db, *, silence: timedelta) -> int:
    """Write off workers that fell silent, and let all pools look at every lane again."""

    def work(tx: Connection) -> int:
        gone = tx.execute(statement("retire_agents"), {"silence": silence.total_seconds()}).all()
        if gone:
            tx.execute(statement("unskip_all_lanes"))
        for agent in gone:
            emit(Event.WORKER_LEFT, worker=agent.id, pool=agent.pool, reason="silent")
        return len(gone)

    count = db.atomically(work)
    if count:
        lanes.unskip_lanes(db)
    return count


def _settle_all(
    db: Db, finder: str, found: Mapping[str, object], *, only_expired: bool
) -> list[Ending]:
    ended: list[Ending] = []
    while True:
        rows = db.atomically(lambda tx: tx.execute(statement(finder), found).mappings().all())
        endings = [_ending(dict(row), only_expired=only_expired) for row in rows]
        if endings:
            fault("reap.after_look")
        won = _record(db, endings)
        for ending in won:
            fault("reap.after_commit")
            _report(ending)
        ended += won
        # A batch nobody won was settled by someone else; whatever is left comes next time.
        if len(rows) < BATCH or not won:
            return ended


def _record(db: Db, endings: Sequence[Ending]) -> list[Ending]:
    return db.atomically(lambda tx: record(tx, endings, keep_stale=False).won)


def _ending(row: Mapping[str, Any], *, only_expired: bool) -> Ending:
    agent = row["claimed_by"]
    result = _what_happened(row)
    standing = Standing(
        row["attempts"],
        row["max_attempts"],
        policy_of(row["retry"]),
        agent,
        failures_of(row["failures"]),
    )
    return Ending(
        Claim(TaskId(row["id"]), row["epoch"], row["token"]),
        UserId(row["user_id"]),
        agent,
        result,
        judge(standing, result, random.random()),  # noqa: S311 - jitter, not a secret
        only_expired=only_expired,
        bundle=row["bundle"],
    )


def _what_happened(row: Mapping[str, Any]) -> Result:
    if row["state"] == State.CLAIMED:
        return Expired()
    if row["cancel_requested"]:
        return Stopped()
    if row["out_of_time"]:
        return TimedOut(by_plan=row["plan_limited"])
    if row["taken_away"]:
        return Interrupted(ENDED_BY_FORCE)
    in_company = row["bundle"] is not None
    return Died(in_company=in_company) if row["died"] else Lost(in_company=in_company)


def _report(ending: Ending) -> None:
    emit(
        Event.TASK_REAPED,
        queue_id=show_task(ending.claim.task_id),
        epoch=ending.claim.epoch,
        state=ending.verdict.event.value,
        reason=ending.verdict.outcome,
        holder=ending.agent,
    )
