"""Ending runs: state, attempt, ledger, dependents, dead letter and event in one transaction."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.claims import Claim, Claimed, Run
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.lifecycle import FINAL, MOVES, WAITING, Event, State, sources, target
from overnight_server.domain.priority import score
from overnight_server.domain.results import Expired, Interrupted, Raised, Result, Returned, Waiting
from overnight_server.domain.retry import RetryPolicy
from overnight_server.domain.verdicts import Standing, Verdict, judge
from overnight_server.fault_points import fault
from overnight_server.outcome.suspend import suspend, tasks_not_spawned_by, would_close_circle
from overnight_server.store import edges, lanes
from overnight_server.store.batched_statements import Call, execute_batch
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

MAX_TEXT = 10_000
# What a task that keeps failing is lifted to, if its rule says so: high, not critical.
ESCALATED_PRIORITY = 2
# A claim nobody has started yet can be taken back: the late start will match no row.
STOPPABLE_AT_ONCE = sorted(WAITING | {State.CLAIMED})
CIRCLE = Raised(
    "circular_dependency",
    "Would create circular dependency: a task that it waits for waits for it",
    retryable=False,
)
STRANGER = Raised("invalid_wait", "was not spawned by this task", retryable=False)


@dataclass(frozen=True)
class Ending:
    """One run, how it ended, and what the judge made of it.

    `only_expired` is for reapers: the ending counts only while the lease is really over.
    """

    claim: Claim
    user_id: UserId
    agent: str
    result: Result
    verdict: Verdict
    only_expired: bool = False
    bundle: UUID | None = None


@dataclass
class Settled:
    """What a settling transaction came to: the claims that were still held, and the others."""

    won: list[Ending] = field(default_factory=list)
    stale: list[Ending] = field(default_factory=list)


def settle(db: Db, run: Run, result: Result, *, agent: str) -> bool:
    """End one run; False if the claim was no longer held, and the result was only kept aside."""
    return bool(settle_all(db, [(run, result)], agent=agent).won)


def settle_all(
    db: Db,
    runs: Sequence[tuple[Run, Result]],
    *,
    agent: str,
    then: Callable[[Connection], None] | None = None,
) -> Settled:
    """End several runs in one transaction; each is won or stale by itself.

    `then` is done in the same transaction, if any of them counted.
    """
    endings = [
        Ending(run.claim, run.user_id, agent, result, _judge_run(run, result, agent))
        for run, result in runs
    ]

    def work(tx: Connection) -> Settled:
        settled = record(tx, endings)
        if then is not None and settled.won:
            then(tx)
        return settled

    settled = db.atomically(work)
    fault("settle.after_commit")
    return settled


def release(db: Db, claims: Sequence[Claimed], *, reason: str) -> int:
    """Give back claims that were never started; it costs nobody anything."""
    endings = [
        Ending(one.claim, one.user_id, "", Expired(reason), _expired(reason)) for one in claims
    ]
    return len(db.atomically(lambda tx: record(tx, endings, keep_stale=False)).won)


def give_up(db: Db, claims: Sequence[Claim], *, agent: str, reason: str) -> int:
    """Give back claims whose start was never answered, whether it was counted or not."""
    result = Interrupted(reason, ran_seconds=0.0)
    verdict = judge(Standing(0, 1, RetryPolicy()), result, 0.0)

    def work(tx: Connection) -> Settled:
        named = {"tasks": [claim.task_id for claim in claims]}
        owners = {row.id: row.user_id for row in tx.execute(statement("owners_of_tasks"), named)}
        endings = [
            Ending(claim, UserId(owners[claim.task_id]), agent, result, verdict)
            for claim in claims
            if claim.task_id in owners
        ]
        return record(tx, endings, keep_stale=False)

    return len(db.atomically(work).won)


def claims_by_token(db: Db, pool: str, token: UUID) -> list[Claim]:
    """Return the claim that was made in a pool under a token, if it was made and still holds."""
    rows = db.run_batch(Call("claims_by_token", {"pool": pool, "token": token}))
    return [Claim(TaskId(row.id), row.epoch, row.token) for row in rows]


def record(tx: Connection, endings: Sequence[Ending], *, keep_stale: bool = True) -> Settled:
    """Write endings in the caller's transaction, which must not have touched tasks before."""
    settled = Settled()
    if not endings:
        return settled
    locking = lanes.lock_call(ending.user_id for ending in endings)
    payers = {ending.user_id for ending in endings if ending.result.cost_usd > 0}
    if payers:
        execute_batch(tx, locking)
        # Their money belongs to the night that is now.
        lanes.end_nights(tx, payers)
    if any(isinstance(one.result, Waiting) for one in endings):
        execute_batch(tx, locking)
        endings = [_sound_wait(tx, one) for one in endings]
    verdicts = {
        "verdicts": json.dumps([_said(_row(one)) for one in endings]),
        "escalated_priority": score(ESCALATED_PRIORITY),
    }
    rows = execute_batch(tx, locking, Call("settle", verdicts))
    won = {row.task_id for row in rows}
    for ending in endings:
        (settled.won if ending.claim.task_id in won else settled.stale).append(ending)
    _follow(tx, settled.won, rows)
    if keep_stale:
        for ending in settled.stale:
            _keep_stale(tx, ending)
    fault("settle.before_commit")
    return settled


def _follow(tx: Connection, won: Sequence[Ending], rows: Sequence[Any]) -> None:
    """Record what follows from the endings: money spent, buried tasks, what waited for them."""
    news = [
        {"task_id": str(row.task_id), "epoch": row.epoch, "usd": str(row.news_usd)}
        for row in rows
        if row.news_usd > 0
    ]
    if news:
        execute_batch(tx, Call("record_spending", {"news": json.dumps(news)}))
    told = [_escalation(one) for one in won if one.verdict.escalation is not None]
    if told:
        execute_batch(tx, Call("insert_escalation_notices", {"told": json.dumps(told)}))
    buried = [one for one in won if one.verdict.event is Event.DEAD_LETTER]
    if buried:
        tx.execute(
            statement("insert_dead_letters"),
            {
                "tasks": [one.claim.task_id for one in buried],
                "poisoned": [one.claim.task_id for one in buried if one.verdict.poison],
            },
        )
    edges.resolve_dependents(
        tx, [row.task_id for row in rows if row.has_dependents and row.goal in FINAL]
    )
    cancel_spawned(tx, [row.task_id for row in rows if row.goal == State.CANCELLED])
    suspended = {row.task_id for row in rows if row.goal == State.PENDING}
    waiting = {
        one.claim.task_id: one.result.tasks
        for one in won
        if isinstance(one.result, Waiting) and one.claim.task_id in suspended
    }
    if waiting:
        suspend(tx, waiting)


def dead_letter_unstarted(tx: Connection, tasks: Sequence[UUID]) -> None:
    """Record what follows from tasks that died without a run: dead letters, and their dependents.

    The caller has moved them in this transaction.
    """
    if tasks:
        tx.execute(statement("insert_dead_letters"), {"tasks": tasks, "poisoned": []})
        edges.resolve_dependents(tx, tasks)


def follow_cancelled(tx: Connection, tasks: Sequence[UUID]) -> None:
    """Record what follows from tasks that somebody stopped, and the caller has moved."""
    cancel_spawned(tx, tasks)
    edges.resolve_dependents(tx, tasks)


def cancel_spawned(tx: Connection, parents: Sequence[UUID]) -> None:
    """End what cancelled tasks spawned and is still open; what runs is asked to stop."""
    if not parents:
        return
    found = tx.execute(
        statement("cancel_spawned"),
        {
            "parents": parents,
            "sources": STOPPABLE_AT_ONCE,
            "target": target(Event.CANCEL),
            "reason": "parent_cancelled",
        },
    ).all()
    edges.resolve_dependents(tx, [row.id for row in found if row.at_once])


def _sound_wait(tx: Connection, ending: Ending) -> Ending:
    """Turn a wait that cannot be kept into a failure of the run, and of no other."""
    if not isinstance(ending.result, Waiting):
        return ending
    task_id, awaited = ending.claim.task_id, ending.result.tasks
    if strangers := tasks_not_spawned_by(tx, task_id, awaited):
        failure = replace(STRANGER, message=f"{show_task(TaskId(strangers[0]))} {STRANGER.message}")
    elif would_close_circle(tx, task_id, awaited):
        failure = CIRCLE
    else:
        return ending
    spent = ending.result
    result = replace(
        failure, cost_usd=spent.cost_usd, tokens=spent.tokens, ran_seconds=spent.ran_seconds
    )
    verdict = judge(Standing(0, 1, RetryPolicy()), result, 0.0)
    return replace(ending, result=result, verdict=verdict)


def _judge_run(run: Run, result: Result, agent: str) -> Verdict:
    standing = Standing(run.attempts, run.max_attempts, run.retry, agent, run.failures)
    return judge(standing, result, random.random())  # noqa: S311 - jitter, not a secret


def _expired(reason: str) -> Verdict:
    return judge(Standing(0, 1, RetryPolicy()), Expired(reason), 0.0)


def _row(ending: Ending) -> dict[str, object]:
    verdict = ending.verdict
    move = MOVES[verdict.event]
    result = ending.result
    returned = result if isinstance(result, Returned) else None
    raised = result if isinstance(result, Raised) else None
    return {
        "task_id": str(ending.claim.task_id),
        "epoch": ending.claim.epoch,
        "token": str(ending.claim.token),
        "sources": _sources(ending),
        "target": move.target.value,
        "is_final": move.target.is_final,
        "only_expired": ending.only_expired,
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "message": _short(verdict.message),
        "detail": _short(raised.detail) if raised else None,
        "wait_seconds": verdict.wait_seconds,
        "spent": verdict.spent,
        "billed": verdict.billed,
        "run_alone": verdict.run_alone,
        "escalation": verdict.escalation,
        "ran_seconds": result.ran_seconds,
        "output": returned.output if returned else None,
        "summary": returned.summary if returned else None,
        "files_changed": list(returned.files_changed) or None if returned else None,
        "cost_usd": result.cost_usd,
        "tokens": result.tokens,
        "waits": True if isinstance(result, Waiting) else None,
    }


def _escalation(ending: Ending) -> dict[str, object]:
    verdict = ending.verdict
    return {
        "task_id": str(ending.claim.task_id),
        "epoch": ending.claim.epoch,
        "rule": verdict.escalation,
        "reason": verdict.reason,
        "error": _short(verdict.message),
    }


def _said(row: dict[str, object]) -> dict[str, object]:
    """Leave out what is not said; most of it is not, for most endings."""
    return {name: value for name, value in row.items() if value is not None}


def _sources(ending: Ending) -> list[str]:
    if isinstance(ending.result, Expired):
        # A claim that was started after all is its worker's, and only its lease can end it.
        return [State.CLAIMED.value]
    return sources(ending.verdict.event)


def _keep_stale(tx: Connection, ending: Ending) -> None:
    kept = _row(ending)
    tx.execute(
        statement("insert_stale_result"),
        {
            "task_id": ending.claim.task_id,
            "epoch": ending.claim.epoch,
            "agent": ending.agent,
            "outcome": ending.verdict.outcome,
            "result": json.dumps({"output": kept["output"], "error": kept["message"]}),
        },
    )


def _short(text: str | None) -> str | None:
    """Cut a text that would bloat the row, and replace what Postgres cannot store."""
    if text is None:
        return None
    return text.replace("\x00", "")[:MAX_TEXT].encode(errors="replace").decode()
