"""Retry policies: which failures are retried, after what delay, and when to escalate."""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

QUADRATIC_BASE_SECONDS = 5.0
EXPONENTIAL_BASE_SECONDS = 10.0
# A larger exponent would overflow; max_delay_sec is reached long before.
MAX_EXPONENT = 64


class Escalation(StrEnum):
    """What happens, besides a notice, to a task that has failed repeatedly."""

    EVENT = "event"
    PRIORITY = "priority"
    DEAD_LETTER = "dead_letter"


class Strategy(StrEnum):
    """How the delay grows with each attempt."""

    EXPONENTIAL = "exponential"
    QUADRATIC = "quadratic"
    FIXED = "fixed"
    IMMEDIATE = "immediate"


@dataclass(frozen=True)
class RetryRules:
    """The retry policy of a task: which failed runs are retried, when, and when it escalates."""

    strategy: Strategy = Strategy.EXPONENTIAL
    initial_delay_sec: float | None = None
    backoff_multiplier: float = 2.0
    max_delay_sec: float = 300.0
    jitter: bool = True
    retry_on: tuple[str, ...] = ("timeout", "crash", "rate_limit", "invalid_output", "error")
    no_retry_on: tuple[str, ...] = ("auth_failure", "budget_exceeded", "cancelled")
    # The number of failed runs after which the escalation applies; None: never.
    escalate_after: int | None = None
    escalate: Escalation = Escalation.EVENT
    # A task is poison after this many failures on this many workers.
    poison_attempts: int = 3
    poison_distinct_agents: int = 2

    @property
    def base_seconds(self) -> float:
        """The delay after the first failure."""
        if self.initial_delay_sec is not None:
            return self.initial_delay_sec
        if self.strategy is Strategy.QUADRATIC:
            return QUADRATIC_BASE_SECONDS
        return EXPONENTIAL_BASE_SECONDS

    def escalation(self, failed: int) -> Escalation | None:
        """Return the escalation after `failed` runs, or None.

        It applies once, except a dead letter, which applies to every later failure too.

        >>> RetryRules(escalate_after=2).escalation(2)
        <Escalation.EVENT: 'event'>
        """
        if self.escalate_after is None or failed < self.escalate_after:
            return None
        if self.escalate is Escalation.DEAD_LETTER or failed == self.escalate_after:
            return self.escalate
        return None

    def wants(self, *classes: str) -> bool:
        """Whether a failure with one of these class names is retried."""
        if any(name in self.no_retry_on for name in classes):
            return False
        return any(name in self.retry_on for name in classes)


def delay_seconds(policy: RetryRules, attempts: int, chance: float) -> float:
    """Return the delay after `attempts` runs; `chance` in [0, 1) is the random part of the jitter.

    The maximum is applied after the jitter.

    >>> delay_seconds(RetryRules(jitter=False), attempts=3, chance=0.0)
    40.0
    >>> delay_seconds(RetryRules(Strategy.QUADRATIC, jitter=False), attempts=3, chance=0.0)
    45.0
    """
    spread = 0.5 + chance if policy.jitter else 1.0
    return min(_growth(policy, attempts) * spread, policy.max_delay_sec)


def _growth(policy: RetryRules, attempts: int) -> float:
    match policy.strategy:
        case Strategy.EXPONENTIAL:
            exponent = min(max(attempts - 1, 0), MAX_EXPONENT)
            return policy.base_seconds * policy.backoff_multiplier**exponent
        case Strategy.QUADRATIC:
            return policy.base_seconds * attempts**2
        case Strategy.FIXED:
            return policy.base_seconds
        case Strategy.IMMEDIATE:
            return 0.0
        case _:
            assert_never(policy.strategy)
