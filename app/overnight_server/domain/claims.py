"""A claim: the one thing that is slot, lock and lease at once."""

from dataclasses import dataclass
from uuid import UUID

from overnight_server.domain.ids import DagId, TaskId, UserId
from overnight_server.domain.retry import RetryPolicy


@dataclass(frozen=True)
class Claim:
    """The fence: whoever shows this triple holds the task; everyone else changes nothing."""

    task_id: TaskId
    epoch: int
    token: UUID


@dataclass(frozen=True)
class Claimed:
    """A claim just taken, with what a publisher may show about it (never the payload)."""

    claim: Claim
    user_id: UserId
    type: str
    attempt: int
    max_attempts: int
    bundle: UUID | None = None


@dataclass(frozen=True)
class Failure:
    """One earlier run of the same task that failed."""

    agent: str
    outcome: str


@dataclass(frozen=True)
class Run:
    """A started claim: everything a worker needs to carry it out and to judge its end."""

    claim: Claim
    user_id: UserId
    dag_id: DagId
    type: str
    title: str
    payload: dict[str, object]
    spec: dict[str, object]
    attempts: int
    max_attempts: int
    retry: RetryPolicy
    granted_seconds: int
    plan_limited: bool
    failures: tuple[Failure, ...] = ()
    bundle: UUID | None = None
    # What all runs of the task together may cost, None for no limit, and what the others did.
    ceiling_usd: float | None = None
    spent_usd: float = 0.0
    # Whether there may be others of its graph, or references, whose outputs it can read.
    is_linked: bool = False

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        return self.attempts + 1
