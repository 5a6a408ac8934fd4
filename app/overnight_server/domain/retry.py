"""When a failed run is worth another try, and how long to wait before it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

QUADRATIC_BASE_SECONDS = 5.0
EXPONENTIAL_BASE_SECONDS = 10.0
# A float power beyond this overflows; every sane cap is reached long before.
MAX_EXPONENT = 64


class Escalation(StrEnum):
    """What becomes of a task that has failed often: people are told, and maybe more than that."""

    EVENT = "event"
    PRIORITY = "priority"
    DEAD_LETTER = "dead_letter"


class Strategy(StrEnum):
    """How the wait grows with each attempt."""

    EXPONENTIAL = "exponential"
    QUADRATIC = "quadratic"
    FIXED = "fixed"
    IMMEDIATE = "immediate"


@dataclass(frozen=True)
class RetryPolicy:
    """What a task's owner asked for when a run fails."""

    strategy: Strategy = Strategy.EXPONENTIAL
    initial_delay_sec: float | None = None
    backoff_multiplier: float = 2.0
    max_delay_sec: float = 300.0
    jitter: bool = True
    retry_on: tuple[str, ...] = ("timeout", "crash", "rate_limit", "invalid_output", "error")
    no_retry_on: tuple[str, ...] = ("auth_failure", "budget_exceeded", "cancelled")
    # After so many failed runs the rule applies, once; None for never.
    escalate_after: int | None = None
    escalate: Escalation = Escalation.EVENT
    # When the task itself is to blame: so many runs failed, on so many workers.
    poison_attempts: int = 3
    poison_distinct_agents: int = 2

    @property
    def base_seconds(self) -> float:
        """The wait the strategy grows from."""
        if self.initial_delay_sec is not None:
            return self.initial_delay_sec
        if self.strategy is Strategy.QUADRATIC:
            return QUADRATIC_BASE_SECONDS
        return EXPONENTIAL_BASE_SECONDS

    def escalation(self, failed: int) -> Escalation | None:
        """Return what the rule asks for after so many failed runs; told once, buried for good.

        >>> RetryPolicy(escalate_after=2).escalation(2)
        <Escalation.EVENT: 'event'>
        """
        if self.escalate_after is None or failed < self.escalate_after:
            return None
        if self.escalate is Escalation.DEAD_LETTER or failed == self.escalate_after:
            return self.escalate
        return None

    def wants(self, *classes: str) -> bool:
        """Whether a failure known by any of these class names should be tried again."""
        if any(name in self.no_retry_on for name in classes):
            return False
        return any(name in self.retry_on for name in classes)


def delay_seconds(policy: RetryPolicy, attempts: int, chance: float) -> float:
    """Return the wait after `attempts` runs; `chance` in [0, 1) spreads it when jitter is on.

    The cap holds after the jitter, so no wait ever exceeds what the owner allowed.

    >>> delay_seconds(RetryPolicy(jitter=False), attempts=3, chance=0.0)
    40.0
    >>> delay_seconds(RetryPolicy(Strategy.QUADRATIC, jitter=False), attempts=3, chance=0.0)
    45.0
    """
    spread = 0.5 + chance if policy.jitter else 1.0
    return min(_growth(policy, attempts) * spread, policy.max_delay_sec)


def _growth(policy: RetryPolicy, attempts: int) -> float:
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
