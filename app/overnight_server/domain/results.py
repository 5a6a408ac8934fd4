"""The ways in which a run can end, as its worker or the reaper reports them."""

from dataclasses import dataclass, field
from uuid import UUID


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """The cost and tokens that a run reported, however it ended.

    `ran_seconds` is the time that the worker measured, or None. In a bundle all tasks are started
    together, so the time from the start would include waiting, which is not billed.
    """

    cost_usd: float = 0.0
    tokens: dict[str, int] = field(default_factory=dict)
    ran_seconds: float | None = None


@dataclass(frozen=True)
class Returned(RunEnd):
    """The handler returned an output."""

    output: object = None
    summary: str | None = None
    files_changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Raised(RunEnd):
    """The handler failed; with `retryable` None the task's retry policy decides."""

    error_class: str
    message: str
    error_type: str = ""
    detail: str = ""
    retryable: bool | None = None
    wait_seconds: float | None = None


@dataclass(frozen=True)
class TimedOut(RunEnd):
    """The run used up its time: the task's own limit, or the plan's."""

    by_plan: bool


@dataclass(frozen=True)
class StoppedByCancel(RunEnd):
    """The run was ended because its owner cancelled the task."""


@dataclass(frozen=True)
class StoppedByBudget(RunEnd):
    """The run stopped because a budget is used up; the task waits for a person to raise it."""

    message: str = "a budget is used up"


@dataclass(frozen=True)
class WaitingForTasks(RunEnd):
    """The run suspended itself; the task continues when all of `tasks` have ended."""

    tasks: tuple[UUID, ...]


@dataclass(frozen=True)
class Interrupted(RunEnd):
    """The deployment stopped the run (shutdown, deploy); it is not billed."""

    reason: str = "shutdown"


@dataclass(frozen=True)
class Deferred(RunEnd):
    """The run could not start its work (busy agent, rate limit); no attempt is counted."""

    wait_seconds: float
    reason: str = "rate_limit"


@dataclass(frozen=True)
class Expired(RunEnd):
    """The claim was not started in time; no attempt is counted."""

    reason: str = "claim_expired"


@dataclass(frozen=True)
class Died(RunEnd):
    """The process of the run died while its worker is alive; `in_bundle`: with other tasks."""

    in_bundle: bool = False


@dataclass(frozen=True)
class Lost(RunEnd):
    """The worker of the run stopped sending heartbeats; the run is not billed."""

    in_bundle: bool = False


Result = (
    Returned
    | Raised
    | TimedOut
    | StoppedByCancel
    | StoppedByBudget
    | WaitingForTasks
    | Interrupted
    | Deferred
    | Expired
    | Died
    | Lost
)
