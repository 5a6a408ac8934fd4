"""Claims of pull agents, which name a claim by its token: read the claim, and settle it."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from sqlalchemy import Connection

from overnight.errors import InvalidRequest, NotStarted, StaleAttempt
from overnight.models.agents import RunCost, RunFailure, TaskResult
from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.ids import TaskId
from overnight_server.domain.lifecycle import State
from overnight_server.domain.results import (
    Busy,
    Deferred,
    Interrupted,
    Raised,
    Released,
    Result,
    Returned,
    TimedOut,
)
from overnight_server.domain.validation import validators_of
from overnight_server.gate.dispatch_log import AGENT_BUSY, log_dispatch_failed
from overnight_server.outcome.settle import keep_stale_result, settle
from overnight_server.store.db import Db
from overnight_server.store.run_rows import run_of
from overnight_server.store.statements import statement

WINDOW_CLOSED = "window_closed"
BUSY = "busy"
# After a failure of these classes with a known wait, no attempt is spent.
DEFERRING_CLASSES = frozenset({"rate_limit", "snooze"})


class Spending(TypedDict):
    """The cost and tokens that a run reports."""

    cost_usd: float
    tokens: dict[str, int]


@dataclass(frozen=True)
class HeldClaim:
    """A claim that is still held: its run, its holder, and for how long a heartbeat counts.

    `is_own_agent`: the task's owner also owns the agent. `window_closed`: the run must end because
    of the owner's window. `releases`: how often the owner's agents gave earlier runs back.
    """

    run: Run
    agent: str
    description: str
    has_begun: bool
    lease: timedelta
    is_own_agent: bool = False
    window_closed: bool = False
    releases: int = 0

    def handed_back(self, reason: str, *, cost_usd: float, tokens: dict[str, int]) -> Result:
        """Return the result of a run or claim that its agent hands back.

        What the owner's own agent worked is billed, and repeated releases count; the closed window
        is no reason of the agent, and counts only as such if it is true.
        """
        is_billed = self.is_own_agent and self.has_begun
        if reason == BUSY:
            return Busy(is_billed, cost_usd=cost_usd, tokens=tokens)
        if not is_billed:
            return Interrupted(reason, cost_usd=cost_usd, tokens=tokens)
        if reason == WINDOW_CLOSED and self.window_closed:
            return Released(reason, cost_usd=cost_usd, tokens=tokens)
        return Released("shutdown", self.releases, cost_usd=cost_usd, tokens=tokens)


def spending(report: RunCost) -> Spending:
    """Return the cost and the tokens of a report."""
    return {"cost_usd": report.cost_usd, "tokens": report.tokens.model_dump(exclude_defaults=True)}


def completed(report: TaskResult, run: Run) -> Result:
    """Return the result of a run that its agent reports as completed.

    Raises InvalidRequest if the output must be validated, which only the worker of a run does.
    """
    if validators_of(run.spec):
        legal = "failed; or let the handler return its output to the worker"
        raise InvalidRequest("status", "the output of this task must be validated", legal=legal)
    return Returned(
        output=report.output,
        summary=report.summary,
        files_changed=tuple(report.files_changed or ()),
        **spending(report),
    )


def failed(report: RunFailure, run: Run) -> Result:
    """Return the result of a run that its agent reports as failed, timed out or rate-limited."""
    if report.error_class in DEFERRING_CLASSES and report.retry_after is not None:
        return Deferred(report.retry_after, report.error_class, **spending(report))
    if report.error_class == "timeout":
        return TimedOut(by_plan=run.plan_limited, **spending(report))
    return Raised(
        error_class=report.error_class,
        message=report.error,
        error_type=report.error_type,
        detail=report.detail,
        retryable=report.retryable,
        wait_seconds=report.retry_after,
        **spending(report),
    )


def read_claim(db: Db, claim: Claim, default_lease: timedelta) -> HeldClaim:
    """Return a claim that is still held; raise StaleAttempt if it has ended.

    The lease is the agent's own, or `default_lease` for runs of built-in workers.
    """
    params = {"task_id": claim.task_id, "epoch": claim.epoch, "token": claim.token}
    row = db.atomically(lambda tx: tx.execute(statement("held_claim"), params).one_or_none())
    if row is None:
        raise StaleAttempt
    lease = default_lease if row.lease_seconds is None else timedelta(seconds=row.lease_seconds)
    return HeldClaim(
        run_of(claim, row),
        row.claimed_by,
        row.description,
        row.state != State.CLAIMED,
        lease,
        is_own_agent=row.is_own_agent,
        window_closed=bool(row.window_closed),
        releases=row.releases,
    )


def read_started_claim(db: Db, claim: Claim, default_lease: timedelta) -> HeldClaim:
    """Do what `read_claim` does; raise NotStarted if the run has not begun."""
    held_claim = read_claim(db, claim, default_lease)
    if not held_claim.has_begun:
        raise NotStarted
    return held_claim


def settle_claim(db: Db, held_claim: HeldClaim, result: Result) -> None:
    """Settle a run with its holder's result and wake the dispatchers.

    Raises StaleAttempt if the claim has ended meanwhile; the result is then only kept for people.
    """
    run = held_claim.run
    if not settle(db, run, result, agent=held_claim.agent):
        raise StaleAttempt
    if isinstance(result, Busy):
        log_dispatch_failed(
            run.claim.task_id, AGENT_BUSY, attempt=run.attempt, max_attempts=run.max_attempts
        )
    # A slot is free, and other tasks may have waited for this one.
    db.wake()


def has_ended(db: Db, task_id: TaskId, epoch: int, outcomes: Collection[str]) -> bool:
    """Return whether a claim has ended with one of these outcomes."""
    params = {"task_id": task_id, "epoch": epoch}
    row = db.atomically(lambda tx: tx.execute(statement("outcome_of_claim"), params).one_or_none())
    return row is not None and row.outcome in outcomes


def keep_late_result(db: Db, task_id: TaskId, epoch: int, result: object) -> None:
    """Store and log a result that arrived after its claim had ended; the task does not change."""
    params = {"task_id": task_id, "epoch": epoch}

    def work(tx: Connection) -> None:
        agent = tx.execute(statement("outcome_of_claim"), params).one().agent
        keep_stale_result(tx, task_id, epoch, agent, outcome="late", reported=result)

    db.atomically(work)
