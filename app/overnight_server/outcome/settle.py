"""The settle transaction: it ends runs and records everything that follows from their results.

State, attempt, ledger (the hours charged), costs, dependents, dead letter and event are written
together. After the commit, dead letters, poison tasks, released claims and cancelled children are
logged. Settling does not wake dispatchers: a worker's slot may claim the next task itself, so its
caller decides.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from overnight_server.domain.claims import Claim, Claimed, FailedRun, Run
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.lifecycle import (
    FINAL,
    MOVES,
    WAITING,
    LifecycleEvent,
    State,
    sources,
    target,
)
from overnight_server.domain.priority import score
from overnight_server.domain.results import (
    Busy,
    Died,
    Expired,
    Interrupted,
    Lost,
    Raised,
    Released,
    Result,
    Returned,
    WaitingForTasks,
    bounded,
)
from overnight_server.domain.retry import RetryRules
from overnight_server.domain.validation import validators_of
from overnight_server.domain.verdicts import TaskHistory, Verdict, judge
from overnight_server.fault_points import fault
from overnight_server.outcome.artifacts import promote_artifacts
from overnight_server.outcome.suspend import suspend, tasks_not_spawned_by, would_close_circle
from overnight_server.store import edges, lanes
from overnight_server.store.after_commit import log_after_commit, request_cancel_after_commit
from overnight_server.store.batched_statements import StatementCall, execute_batch
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent

# The error class of a run whose result Postgres rejects.
UNSTORABLE = "invalid_output"
# The priority that the escalation rule `priority` gives to a task that keeps failing: high.
ESCALATED_PRIORITY = 2
# A task that nobody runs can be cancelled at once; the late start of a claim then matches no row.
STOPPABLE_AT_ONCE = sorted(WAITING | {State.CLAIMED})
CIRCULAR_WAIT = Raised(
    "circular_dependency",
    "Would create circular dependency: a task that it waits for waits for it",
    retryable=False,
)
INVALID_WAIT = Raised("invalid_wait", "was not spawned by this task", retryable=False)
# The actor of cancels that follow from the cancel of a parent.
PARENT = "parent"
PARENT_CANCELLED = "parent_cancelled"
# Runs that the task repeats from its start: their artifacts are never seen.
BROKEN_OFF = (Busy, Died, Expired, Interrupted, Lost, Released)
# The verdict on a claim that spends nothing does not depend on earlier runs.
NO_HISTORY = TaskHistory(0, 1, RetryRules())


@dataclass(frozen=True)
class Ending:
    """One run with its result and the verdict on it.

    With `only_expired`, which reapers set, the verdict applies only if the lease has expired.
    `attempts` and `failures` are those before this run. `max_attempts` is only logged. A run that
    `is_validated` completes its task only from `validating`.
    """

    claim: Claim
    user_id: UserId
    agent: str
    result: Result
    verdict: Verdict
    only_expired: bool = False
    bundle: UUID | None = None
    attempts: int = 0
    max_attempts: int = 0
    failures: Sequence[FailedRun] = ()
    is_validated: bool = False


@dataclass
class Settled:
    """The endings whose claim was still held, which were applied, and those that came too late."""

    won: list[Ending] = field(default_factory=list)
    stale: list[Ending] = field(default_factory=list)


def settle(db: Db, run: Run, result: Result, *, agent: str) -> bool:
    """Settle one run; if its claim was no longer held, only store the result and return False.

    If Postgres rejects the data of the result, a failure that says so is recorded instead.
    """
    try:
        settled = settle_all(db, [(run, result)], agent=agent)
    except DataError as error:
        settled = settle_all(db, [(run, unstorable(result, error))], agent=agent)
    return bool(settled.won)


def unstorable(result: Result, error: DataError) -> Raised:
    """Return the failure to record instead of a result whose data Postgres rejects."""
    return Raised(
        UNSTORABLE,
        f"the result cannot be stored: {error.orig}",
        "InvalidOutput",
        cost_usd=result.cost_usd,
        tokens=result.tokens,
        ran_seconds=result.ran_seconds,
    )


def settle_all(
    db: Db,
    runs: Sequence[tuple[Run, Result]],
    *,
    agent: str,
    then: Callable[[Connection], None] | None = None,
) -> Settled:
    """Settle several runs in one transaction; each is applied or stale by itself.

    `then` is called in the same transaction if at least one of them was applied.
    """
    endings = [_ending_of(run, result, agent) for run, result in runs]

    def work(tx: Connection) -> Settled:
        settled = record(tx, endings)
        if then is not None and settled.won:
            then(tx)
        return settled

    settled = db.atomically(work)
    fault("settle.after_commit")
    return settled


def release(db: Db, claims: Sequence[Claimed], *, reason: str) -> int:
    """Hand back claims that were not started; no attempt is spent. Return how many were held."""
    result = Expired(reason)
    verdict = judge(NO_HISTORY, result, 0.0)
    endings = [Ending(claimed.claim, claimed.user_id, "", result, verdict) for claimed in claims]
    return len(db.atomically(lambda tx: record(tx, endings, keep_stale=False)).won)


def hand_back(db: Db, claims: Sequence[Claim], *, agent: str, reason: str) -> int:
    """Hand back claims whose start got no reply, so that it is unknown whether they were started.

    No attempt is spent. Return how many were held.
    """
    result = Interrupted(reason, ran_seconds=0.0)
    verdict = judge(NO_HISTORY, result, 0.0)

    def work(tx: Connection) -> Settled:
        params = {"tasks": [claim.task_id for claim in claims]}
        owners = {row.id: row.user_id for row in tx.execute(statement("owners_of_tasks"), params)}
        endings = [
            Ending(claim, UserId(owners[claim.task_id]), agent, result, verdict)
            for claim in claims
            if claim.task_id in owners
        ]
        settled = record(tx, endings, keep_stale=False)
        for ending in settled.won:
            _log_released(tx, ending.claim, reason)
        return settled

    return len(db.atomically(work).won)


def claims_by_token(db: Db, pool: str, token: UUID) -> list[Claim]:
    """Return the claims of a pool that were made under this token and are still held."""
    rows = db.run_batch(StatementCall("claims_by_token", {"pool": pool, "token": token}))
    return [Claim(TaskId(row.id), row.epoch, row.token) for row in rows]


def record(tx: Connection, endings: Sequence[Ending], *, keep_stale: bool = True) -> Settled:
    """Write endings in the caller's transaction, which must not have locked tasks before.

    With `keep_stale`, results that came too late are stored for people to see.
    """
    settled = Settled()
    if not endings:
        return settled
    lock = lanes.lock_call(ending.user_id for ending in endings)
    payers = {ending.user_id for ending in endings if ending.result.cost_usd > 0}
    if payers:
        execute_batch(tx, lock)
        # Costs count for the night in which they are recorded.
        lanes.end_nights(tx, payers)
    if any(isinstance(ending.result, WaitingForTasks) for ending in endings):
        execute_batch(tx, lock)
        endings = [_check_wait(tx, ending) for ending in endings]
    verdicts = {
        "verdicts": json.dumps([_without_nulls(_row(ending)) for ending in endings]),
        "escalated_priority": score(ESCALATED_PRIORITY),
    }
    rows = execute_batch(tx, lock, StatementCall("settle", verdicts))
    # With the epoch: a worker may report a run that it lost together with its next run of the task.
    applied = {(row.task_id, row.epoch) for row in rows}
    for ending in endings:
        (settled.won if _fence(ending.claim) in applied else settled.stale).append(ending)
    _record_consequences(tx, settled.won, rows)
    if keep_stale:
        for ending in settled.stale:
            row = _row(ending)
            reported = {"output": row["output"], "error": row["message"]}
            keep_stale_result(
                tx,
                ending.claim.task_id,
                ending.claim.epoch,
                ending.agent,
                outcome=ending.verdict.outcome,
                reported=reported,
            )
    fault("settle.before_commit")
    return settled


def keep_stale_result(
    tx: Connection, task_id: TaskId, epoch: int, agent: str, *, outcome: str, reported: object
) -> None:
    """Store and log what a holder reported after its claim had ended; the task does not change.

    The result is only in the table `stale_results`, where an operator can read it with SQL.
    """
    tx.execute(
        statement("insert_stale_result"),
        {
            "task_id": task_id,
            "epoch": epoch,
            "agent": agent,
            "outcome": outcome,
            "result": json.dumps(reported),
        },
    )
    log_after_commit(
        tx,
        LogEvent.STALE_RESULT,
        queue_id=show_task(task_id),
        epoch=epoch,
        reason=outcome,
        worker=agent,
    )


def _fence(claim: Claim) -> tuple[TaskId, int]:
    return claim.task_id, claim.epoch


def dead_letter_unstarted(tx: Connection, tasks: Sequence[UUID], reason: str) -> None:
    """Insert dead letters for tasks that ended without a run, and resolve their dependents.

    The caller has moved the tasks to `dead_lettered` in this transaction.
    """
    if tasks:
        tx.execute(statement("insert_dead_letters"), {"tasks": tasks, "poisoned": []})
        edges.resolve_dependents(tx, tasks)
    for task_id in tasks:
        log_after_commit(
            tx,
            LogEvent.TASK_DEAD_LETTERED,
            queue_id=show_task(TaskId(task_id)),
            epoch=None,
            attempts=None,
            reason=reason,
            poison=False,
        )


def resolve_cancelled(tx: Connection, tasks: Sequence[UUID]) -> None:
    """Cancel the children of tasks that the caller has cancelled, and resolve their dependents."""
    cancel_spawned(tx, tasks)
    edges.resolve_dependents(tx, tasks)


def cancel_spawned(tx: Connection, parents: Sequence[UUID]) -> None:
    """Cancel the open children of cancelled tasks; running children are requested to stop.

    Dependents of the cancelled children are resolved in the same transaction, whose caller holds
    the lane; log lines and requests to stop are sent after the commit.
    """
    if not parents:
        return
    rows = tx.execute(
        statement("cancel_spawned"),
        {
            "parents": parents,
            "sources": STOPPABLE_AT_ONCE,
            "target": target(LifecycleEvent.CANCEL),
            "reason": PARENT_CANCELLED,
        },
    ).all()
    edges.resolve_dependents(tx, [row.id for row in rows if row.is_waiting])
    for row in rows:
        queue_id = show_task(TaskId(row.id))
        if row.is_waiting:
            log_after_commit(
                tx,
                LogEvent.TASK_CANCELLED,
                queue_id=queue_id,
                actor=PARENT,
                reason=PARENT_CANCELLED,
            )
        else:
            log_after_commit(tx, LogEvent.CANCEL_REQUESTED, queue_id=queue_id, actor=PARENT)
            request_cancel_after_commit(tx)


def _record_consequences(tx: Connection, won: Sequence[Ending], rows: Sequence[Any]) -> None:
    """Record costs, escalations, dead letters, dependents, children and waits of the endings."""
    costs = [
        {"task_id": str(row.task_id), "epoch": row.epoch, "usd": str(row.unrecorded_usd)}
        for row in rows
        if row.unrecorded_usd > 0
    ]
    if costs:
        execute_batch(tx, StatementCall("record_spending", {"costs": json.dumps(costs)}))
    if rejections := _rejections(won):
        execute_batch(
            tx, StatementCall("keep_rejected_outputs", {"rejections": json.dumps(rejections)})
        )
    escalations = [_escalation(ending) for ending in won if ending.verdict.escalation is not None]
    if escalations:
        execute_batch(
            tx, StatementCall("insert_escalation_notices", {"escalations": json.dumps(escalations)})
        )
    dead = [ending for ending in won if ending.verdict.event is LifecycleEvent.DEAD_LETTER]
    if dead:
        tx.execute(
            statement("insert_dead_letters"),
            {
                "tasks": [ending.claim.task_id for ending in dead],
                "poisoned": [ending.claim.task_id for ending in dead if ending.verdict.poison],
            },
        )
    _promote_artifacts(tx, won, rows)
    edges.resolve_dependents(
        tx, [row.task_id for row in rows if row.has_dependents and row.goal in FINAL]
    )
    cancel_spawned(tx, [row.task_id for row in rows if row.goal == State.CANCELLED])
    suspended = {row.task_id for row in rows if row.goal == State.PENDING}
    waits = {
        ending.claim.task_id: ending.result.tasks
        for ending in won
        if isinstance(ending.result, WaitingForTasks) and ending.claim.task_id in suspended
    }
    if waits:
        suspend(tx, waits)
    for ending in won:
        _log_ending(tx, ending)


def _promote_artifacts(tx: Connection, won: Sequence[Ending], rows: Sequence[Any]) -> None:
    """Make the artifacts of runs that came to their end visible, by user: they are counted."""
    with_artifacts = {(row.task_id, row.epoch) for row in rows if row.has_artifacts}
    for ending in sorted(won, key=lambda one: one.user_id):
        if _fence(ending.claim) in with_artifacts and not isinstance(ending.result, BROKEN_OFF):
            promote_artifacts(tx, ending.claim.task_id, ending.claim.epoch)


def _log_ending(tx: Connection, ending: Ending) -> None:
    """Log a released claim, a dead letter and a poison task, once the transaction has committed."""
    claim, verdict = ending.claim, ending.verdict
    task = {"queue_id": show_task(claim.task_id), "epoch": claim.epoch}
    if isinstance(ending.result, Expired):
        _log_released(tx, claim, ending.result.reason)
    if verdict.event is not LifecycleEvent.DEAD_LETTER:
        return
    attempts = ending.attempts + int(verdict.spent)
    log_after_commit(
        tx,
        LogEvent.TASK_DEAD_LETTERED,
        **task,
        attempts=attempts,
        reason=verdict.reason,
        poison=verdict.poison,
    )
    if verdict.poison:
        workers = {failure.agent for failure in ending.failures} | {ending.agent}
        log_after_commit(
            tx,
            LogEvent.POISON_FOUND,
            queue_id=task["queue_id"],
            deaths=len(ending.failures) + 1,
            workers=len(workers),
        )


def _log_released(tx: Connection, claim: Claim, reason: str) -> None:
    queue_id = show_task(claim.task_id)
    log_after_commit(
        tx, LogEvent.CLAIM_RELEASED, queue_id=queue_id, epoch=claim.epoch, reason=reason
    )


def _check_wait(tx: Connection, ending: Ending) -> Ending:
    """Return the ending; a wait that can never end becomes a failure of the run."""
    if not isinstance(ending.result, WaitingForTasks):
        return ending
    task_id, awaited = ending.claim.task_id, ending.result.tasks
    if not_spawned := tasks_not_spawned_by(tx, task_id, awaited):
        message = f"{show_task(TaskId(not_spawned[0]))} {INVALID_WAIT.message}"
        failure = replace(INVALID_WAIT, message=message)
    elif would_close_circle(tx, task_id, awaited):
        failure = CIRCULAR_WAIT
    else:
        return ending
    spent = ending.result
    result = replace(
        failure, cost_usd=spent.cost_usd, tokens=spent.tokens, ran_seconds=spent.ran_seconds
    )
    return replace(ending, result=result, verdict=judge(NO_HISTORY, result, 0.0))


def _ending_of(run: Run, result: Result, agent: str) -> Ending:
    result = bounded(result)
    standing = TaskHistory(run.attempts, run.max_attempts, run.retry, agent, run.failures)
    verdict = judge(standing, result, random.random())  # noqa: S311 - jitter, not a secret
    return Ending(
        run.claim,
        run.user_id,
        agent,
        result,
        verdict,
        attempts=run.attempts,
        max_attempts=run.max_attempts,
        failures=run.failures,
        is_validated=bool(validators_of(run.spec)),
    )


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
        "message": verdict.message,
        "detail": raised.detail if raised else None,
        "wait_seconds": verdict.wait_seconds,
        "spent": verdict.spent,
        "billed": verdict.billed,
        "run_alone": verdict.run_alone,
        "to_back": verdict.to_back or None,
        "escalation": verdict.escalation,
        "ran_seconds": result.ran_seconds,
        "output": returned.output if returned else None,
        "summary": returned.summary if returned else None,
        "files_changed": list(returned.files_changed) or None if returned else None,
        "cost_usd": result.cost_usd,
        "tokens": result.tokens,
        "waits": True if isinstance(result, WaitingForTasks) else None,
    }


def _rejections(endings: Sequence[Ending]) -> list[dict[str, object]]:
    """Return the outputs that validators rejected, as `keep_rejected_outputs` takes them."""
    return [
        {
            "task_id": str(ending.claim.task_id),
            "epoch": ending.claim.epoch,
            "validator": ending.result.validator,
            "rejected": ending.result.rejected,
        }
        for ending in endings
        if isinstance(ending.result, Raised) and ending.result.rejected is not None
    ]


def _escalation(ending: Ending) -> dict[str, object]:
    verdict = ending.verdict
    return {
        "task_id": str(ending.claim.task_id),
        "epoch": ending.claim.epoch,
        "rule": verdict.escalation,
        "reason": verdict.reason,
        "error": verdict.message,
    }


def _without_nulls(row: dict[str, object]) -> dict[str, object]:
    """Return a row without its null fields: most fields are null and need not be sent."""
    return {name: value for name, value in row.items() if value is not None}


def _sources(ending: Ending) -> list[str]:
    if isinstance(ending.result, Expired):
        # A claim that was started meanwhile is left to its worker, and to its lease.
        return [State.CLAIMED.value]
    if ending.is_validated and ending.verdict.event is LifecycleEvent.COMPLETE:
        return [State.VALIDATING.value]
    return sources(ending.verdict.event)
