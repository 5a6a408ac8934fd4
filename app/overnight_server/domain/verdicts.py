"""Judging a finished run: what becomes of the task, who pays, and what is remembered."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from overnight_server.domain.claims import Failure
from overnight_server.domain.lifecycle import Event
from overnight_server.domain.results import (
    Deferred,
    Died,
    Expired,
    Interrupted,
    Lost,
    Raised,
    Result,
    Returned,
    Stopped,
    Suspended,
    TimedOut,
    Waiting,
)
from overnight_server.domain.retry import Escalation, RetryPolicy, delay_seconds

CRASH = "crash"
WORKER_LOST = "worker_lost"
# Outcomes that say nothing about the task itself, so they never count towards poison.
BLAMELESS = frozenset({WORKER_LOST, "interrupted", "expired", "deferred", "suspended"})
POISON_CRASHES = 2


@dataclass(frozen=True)
class Standing:
    """What the judge must know of the task besides how the run ended."""

    attempts: int
    max_attempts: int
    retry: RetryPolicy
    agent: str = ""
    failures: Sequence[Failure] = ()


@dataclass(frozen=True)
class Verdict:
    """What one transaction then writes.

    `outcome` is the word kept on the attempt; `reason` the one kept on the task.
    `billed` False refunds the time; `spent` False leaves the attempt count alone;
    `run_alone` keeps the task out of bundles from now on; `escalation` is what its owner's rule
    for repeated failure asks for.
    """

    event: Event
    outcome: str
    reason: str | None = None
    message: str | None = None
    wait_seconds: float = 0.0
    spent: bool = True
    billed: bool = True
    poison: bool = False
    run_alone: bool = False
    escalation: Escalation | None = None


def judge(standing: Standing, result: Result, chance: float) -> Verdict:
    """Judge one finished run; `chance` in [0, 1) feeds the jitter."""
    match result:
        case Returned():
            return Verdict(Event.COMPLETE, "completed")
        case Raised():
            return _after_failure(
                standing,
                outcome="failed",
                reason=result.error_class,
                message=result.message,
                retryable=_wants(standing.retry, result),
                wait=_asked_or_policy(standing, result.wait_seconds, chance),
            )
        case TimedOut(by_plan=True):
            # Retrying would only burn the same hours again.
            return Verdict(Event.DEAD_LETTER, "plan_timeout", "plan_timeout", "Timeout")
        case TimedOut():
            return _after_failure(
                standing,
                outcome="timeout",
                reason="timeout",
                message="Timeout",
                retryable=standing.retry.wants("timeout"),
                wait=_asked_or_policy(standing, None, chance),
            )
        case Stopped():
            return Verdict(Event.CANCEL, "cancelled", "cancelled")
        case Suspended() | Waiting() | Interrupted() | Expired() | Deferred():
            return _put_off(result)
        case Died(in_company=True) | Lost(in_company=True):
            # Nobody can tell whose crash it was: all members go back, and run alone next time.
            return Verdict(
                Event.HAND_BACK,
                "bundle_crash",
                message="a bundle crashed with this run in it",
                spent=False,
                billed=False,
                run_alone=True,
            )
        case Died():
            return _after_crash(standing, CRASH, "the run died under a live worker", chance)
        case Lost():
            return _after_crash(standing, WORKER_LOST, "heartbeat_timeout", chance)
        case _:
            assert_never(result)


def _put_off(result: Suspended | Waiting | Interrupted | Expired | Deferred) -> Verdict:
    """Judge a run that could not go on, for which its task is not to blame: it spends nothing."""
    match result:
        case Suspended(message):
            # Its time is billed like any other.
            return Verdict(Event.SUSPEND, "suspended", "budget_exceeded", message, spent=False)
        case Waiting():
            return Verdict(Event.SUSPEND, "suspended", spent=False)
        case Interrupted(reason):
            return Verdict(
                Event.HAND_BACK, "interrupted", message=reason, spent=False, billed=False
            )
        case Expired(reason):
            return Verdict(Event.HAND_BACK, "expired", message=reason, spent=False, billed=False)
        case Deferred(wait_seconds, reason):
            return Verdict(Event.RETRY, "deferred", reason, wait_seconds=wait_seconds, spent=False)
        case _:
            assert_never(result)


def is_poison(
    failures: Sequence[Failure], attempts: int, policy: RetryPolicy | None = None
) -> bool:
    """Whether the task itself, not its agents, is what keeps failing.

    Either the rule of the policy (by default two agents, three attempts), or two runs that
    killed themselves on two workers. Workers killed from outside accuse nobody.
    """
    rule = policy or RetryPolicy()
    guilty = [failure for failure in failures if failure.outcome not in BLAMELESS]
    crashed_on = {failure.agent for failure in guilty if failure.outcome == CRASH}
    if len(crashed_on) >= POISON_CRASHES:
        return True
    agents = {failure.agent for failure in guilty}
    return (
        len(agents) >= rule.poison_distinct_agents
        and min(attempts, len(guilty)) >= rule.poison_attempts
    )


def _wants(policy: RetryPolicy, failure: Raised) -> bool:
    if failure.retryable is not None:
        return failure.retryable
    return policy.wants(failure.error_class, failure.error_type)


def _asked_or_policy(standing: Standing, asked: float | None, chance: float) -> float:
    if asked is not None:
        return asked
    return delay_seconds(standing.retry, standing.attempts + 1, chance)


def _after_crash(standing: Standing, outcome: str, message: str, chance: float) -> Verdict:
    seen_before = any(failure.outcome in (CRASH, WORKER_LOST) for failure in standing.failures)
    return _after_failure(
        standing,
        outcome=outcome,
        reason=CRASH,
        message=message,
        retryable=standing.retry.wants(CRASH),
        # The first crash is most likely the machine's; waiting would only lose the night.
        wait=_asked_or_policy(standing, None, chance) if seen_before else 0.0,
        billed=outcome == CRASH,
    )


def _after_failure(
    standing: Standing,
    *,
    outcome: str,
    reason: str,
    message: str,
    retryable: bool,
    wait: float,
    billed: bool = True,
) -> Verdict:
    attempts = standing.attempts + 1
    seen = [*standing.failures, Failure(standing.agent, outcome)]
    poison = is_poison(seen, attempts, standing.retry)
    escalation = standing.retry.escalation(attempts)
    given_up = poison or escalation is Escalation.DEAD_LETTER
    if retryable and not given_up and attempts < standing.max_attempts:
        return Verdict(
            Event.RETRY,
            outcome,
            reason,
            message,
            wait_seconds=wait,
            billed=billed,
            escalation=escalation,
        )
    return Verdict(
        Event.DEAD_LETTER,
        outcome,
        reason,
        message,
        billed=billed,
        poison=poison,
        escalation=escalation,
    )
