"""Claims: who holds a task. A claim is the slot, the lock and the lease in one."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from overnight_server.domain.ids import DagId, TaskId, UserId
from overnight_server.domain.retry import RetryRules


@dataclass(frozen=True)
class Claim:
    """The fencing token of a claim; statements with another epoch or token match no row."""

    task_id: TaskId
    epoch: int
    token: UUID


@dataclass(frozen=True)
class Claimed:
    """A new claim with what the dispatcher publishes and logs; never the payload."""

    claim: Claim
    user_id: UserId
    type: str
    attempt: int
    max_attempts: int
    bundle: UUID | None = None


@dataclass(frozen=True)
class FailedRun:
    """An earlier failed run of the same task."""

    agent: str
    outcome: str


@dataclass(frozen=True)
class Run:
    """A started claim with everything a worker needs to execute and settle it."""

    claim: Claim
    user_id: UserId
    dag_id: DagId
    type: str
    title: str
    payload: dict[str, object]
    spec: dict[str, object]
    attempts: int
    max_attempts: int
    retry: RetryRules
    granted_seconds: int
    plan_limited: bool
    failures: tuple[FailedRun, ...] = ()
    bundle: UUID | None = None
    # What all runs of the task may cost together (None: no limit), and what earlier ones cost.
    ceiling_usd: float | None = None
    spent_usd: float = 0.0
    # Whether the task may have inputs: other tasks of its graph, or references.
    is_linked: bool = False
    # How the command of the task runs, as its row has it; None for other runners.
    execution: dict[str, Any] | None = None

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        return self.attempts + 1
