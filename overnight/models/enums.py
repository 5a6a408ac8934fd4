"""Enumerations on the wire: task status, plan, retry strategy, closing window."""

from enum import StrEnum


class TaskStatus(StrEnum):
    """The public status of a task; `state` is more detailed."""

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
    """The plan of a user."""

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


class AtClosing(StrEnum):
    """What happens to running and waiting tasks when a night window closes."""

    STOP = "stop"
    FINISH = "finish"
    CONTINUE = "continue"
