"""The small sets of words that travel: states, plans, ways to wait between runs."""

from enum import StrEnum


class TaskStatus(StrEnum):
    """Where a task stands, in the small public set of words."""

    PENDING = "pending"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether the task has ended."""
        return self in {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED}


class PlanTier(StrEnum):
    """The plan a user is on."""

    FREE = "free"
    PRO = "pro"
    TEAM = "team"
    ENTERPRISE = "enterprise"


class RetryStrategy(StrEnum):
    """How the wait between two runs grows."""

    EXPONENTIAL = "exponential"
    QUADRATIC = "quadratic"
    FIXED = "fixed"
    IMMEDIATE = "immediate"
