"""Decides what follows from a finished run: the next state, retry, billing and poison."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from overnight_server.domain.claims import FailedRun
from overnight_server.domain.lifecycle import LifecycleEvent
from overnight_server.domain.results import (
    Busy,
    Deferred,
    Died,
    Expired,
    Interrupted,
    Lost,
    Raised,
    Released,
    Result,
    Returned,
    StoppedByBudget,
    StoppedByCancel,
    TimedOut,
    WaitingForTasks,
)
from overnight_server.domain.retry import Escalation, RetryRules, delay_seconds

CRASH = "crash"
WORKER_LOST = "worker_lost"
OUT_OF_MEMORY = "out_of_memory"
MEMORY_EXCEEDED = "the run used more memory than its worker allows (OVERNIGHT_RUN_MEMORY_MB)"
RELEASED = "released"
# Outcomes that say nothing about the task itself.
NOT_COUNTED_AS_POISON = frozenset(
    {WORKER_LOST, RELEASED, "interrupted", "busy", "expired", "deferred", "suspended"}
)
# How often the agents of a task's owner may hand the task back before that spends an attempt.
FREE_RELEASES = 3
POISON_CRASHES = 2


@dataclass(frozen=True)
class TaskHistory:
    """What the verdict depends on besides how the run ended."""

    attempts: int
    max_attempts: int
    retry: RetryRules
    agent: str = ""
    failures: Sequence[FailedRun] = ()


@dataclass(frozen=True)
class Verdict:
    """What the settling transaction writes.

    `outcome` is stored on the attempt, `reason` on the task. `billed` False refunds the time;
    `spent` False does not count the attempt; `run_alone` keeps the task out of bundles from now on;
    `to_back` puts it behind the tasks of equal priority that wait already; `escalation` is what the
    task's retry policy requires after repeated failures.
    """

    event: LifecycleEvent
    outcome: str
    reason: str | None = None
    message: str | None = None
    wait_seconds: float = 0.0
    spent: bool = True
    billed: bool = True
    poison: bool = False
    run_alone: bool = False
    to_back: bool = False
    escalation: Escalation | None = None


def judge(history: TaskHistory, result: Result, chance: float) -> Verdict:
    """Return the verdict on a finished run; `chance` in [0, 1) is the random part of the jitter."""
    match result:
        case Returned():
            return Verdict(LifecycleEvent.COMPLETE, "completed")
        case Raised():
            return _after_failure(
                history,
                outcome="failed",
                reason=result.error_class,
                message=result.message,
                retryable=_is_retryable(history.retry, result),
                # Only what a handler raised has a type; an agent that is not reached asks nothing.
                requested=result.retryable is True and bool(result.error_type),
                wait=_retry_wait(history, result.wait_seconds, chance),
            )
        case TimedOut(by_plan=True):
            # A retry would only use the same hours again.
            return Verdict(LifecycleEvent.DEAD_LETTER, "plan_timeout", "plan_timeout", "Timeout")
        case TimedOut():
            return _after_failure(
                history,
                outcome="timeout",
                reason="timeout",
                message="Timeout",
                retryable=history.retry.wants("timeout"),
                wait=_retry_wait(history, None, chance),
            )
        case StoppedByCancel():
            return Verdict(LifecycleEvent.CANCEL, "cancelled", "cancelled")
        case Released():
            return _after_release(history, result, _retry_wait(history, None, chance))
        case (
            StoppedByBudget() | WaitingForTasks() | Interrupted() | Busy() | Expired() | Deferred()
        ):
            return _not_counted(result)
        case Died(in_bundle=True) | Lost(in_bundle=True):
            # Which task crashed is unknown, so all are returned to the queue and run alone.
            return Verdict(
                LifecycleEvent.HAND_BACK,
                "bundle_crash",
                message="a bundle crashed with this run in it",
                spent=False,
                billed=False,
                run_alone=True,
            )
        case Died(out_of_memory=True):
            return _after_failure(
                history,
                outcome=OUT_OF_MEMORY,
                reason=OUT_OF_MEMORY,
                message=MEMORY_EXCEEDED,
                retryable=history.retry.wants(OUT_OF_MEMORY),
                wait=_retry_wait(history, None, chance),
            )
        case Died():
            return _after_crash(history, CRASH, "the run died under a live worker", chance)
        case Lost():
            return _after_crash(history, WORKER_LOST, "heartbeat_timeout", chance)
        case _:
            assert_never(result)


def _after_release(history: TaskHistory, release: Released, wait: float) -> Verdict:
    """Return the verdict on a run that an agent of the task's owner gave back."""
    if release.earlier < FREE_RELEASES:
        return Verdict(LifecycleEvent.HAND_BACK, RELEASED, message=release.reason, spent=False)
    return _after_failure(
        history,
        outcome=RELEASED,
        reason="released_too_often",
        message=f"agents have given the task back {release.earlier + 1} times",
        retryable=True,
        wait=wait,
    )


def _not_counted(
    result: StoppedByBudget | WaitingForTasks | Interrupted | Busy | Expired | Deferred,
) -> Verdict:
    """Return the verdict on a run that ended through no fault of the task: no attempt counts."""
    match result:
        case StoppedByBudget(message):
            # The time it ran is billed.
            return Verdict(
                LifecycleEvent.SUSPEND, "suspended", "budget_exceeded", message, spent=False
            )
        case WaitingForTasks():
            return Verdict(LifecycleEvent.SUSPEND, "suspended", spent=False)
        case Interrupted(reason):
            return Verdict(
                LifecycleEvent.HAND_BACK, "interrupted", message=reason, spent=False, billed=False
            )
        case Busy(billed):
            return Verdict(
                LifecycleEvent.HAND_BACK,
                "busy",
                message="the agent was busy",
                spent=False,
                billed=billed,
                to_back=True,
            )
        case Expired(reason):
            return Verdict(
                LifecycleEvent.HAND_BACK, "expired", message=reason, spent=False, billed=False
            )
        case Deferred(wait_seconds, reason):
            return Verdict(
                LifecycleEvent.RETRY, "deferred", reason, wait_seconds=wait_seconds, spent=False
            )
        case _:
            assert_never(result)


def is_poison(
    failures: Sequence[FailedRun], attempts: int, policy: RetryRules | None = None
) -> bool:
    """Whether the task itself, and not its workers, causes the failures.

    True under the policy's rule (by default three failures on two workers), or after two runs that
    crashed by themselves on two workers. A worker that was killed from outside does not count.
    """
    rule = policy or RetryRules()
    counted = [failure for failure in failures if failure.outcome not in NOT_COUNTED_AS_POISON]
    crashed_on = {failure.agent for failure in counted if failure.outcome == CRASH}
    if len(crashed_on) >= POISON_CRASHES:
        return True
    agents = {failure.agent for failure in counted}
    return (
        len(agents) >= rule.poison_distinct_agents
        and min(attempts, len(counted)) >= rule.poison_attempts
    )


def _is_retryable(policy: RetryRules, failure: Raised) -> bool:
    if failure.retryable is not None:
        return failure.retryable
    return policy.wants(failure.error_class, failure.error_type)


def _retry_wait(history: TaskHistory, requested: float | None, chance: float) -> float:
    if requested is not None:
        return requested
    return delay_seconds(history.retry, history.attempts + 1, chance)


def _after_crash(history: TaskHistory, outcome: str, message: str, chance: float) -> Verdict:
    crashed_before = any(failure.outcome in (CRASH, WORKER_LOST) for failure in history.failures)
    return _after_failure(
        history,
        outcome=outcome,
        reason=CRASH,
        message=message,
        retryable=history.retry.wants(CRASH),
        # The first crash is most likely the machine's fault, so the retry is immediate.
        wait=_retry_wait(history, None, chance) if crashed_before else 0.0,
        billed=outcome == CRASH,
    )


def _after_failure(
    history: TaskHistory,
    *,
    outcome: str,
    reason: str,
    message: str,
    retryable: bool,
    wait: float,
    billed: bool = True,
    requested: bool = False,
) -> Verdict:
    """Return the verdict on a failed run; `requested` means that it asked for another run.

    A handler that waits for something else asks again and again, on every worker. That says nothing
    about the task, so only its attempts limit it; the run that uses up the last one is judged.
    """
    attempts = history.attempts + 1
    failures = [*history.failures, FailedRun(history.agent, outcome)]
    poison = is_poison(failures, attempts, history.retry)
    # Counted since the task was last revived, as poison is.
    escalation = history.retry.escalation(len(failures))
    is_final = (poison and not requested) or escalation is Escalation.DEAD_LETTER
    if retryable and not is_final and attempts < history.max_attempts:
        return Verdict(
            LifecycleEvent.RETRY,
            outcome,
            reason,
            message,
            wait_seconds=wait,
            billed=billed,
            escalation=escalation,
        )
    return Verdict(
        LifecycleEvent.DEAD_LETTER,
        outcome,
        reason,
        message,
        billed=billed,
        poison=poison,
        escalation=escalation,
    )
