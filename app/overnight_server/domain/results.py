"""How a run can end, as seen by whoever watched it."""

from dataclasses import dataclass, field
from uuid import UUID


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What every end carries: the money and tokens the run reported, however it ended.

    `ran_seconds` is what its holder measured, if it did: a member of a bundle is started with
    the others and waits its turn, for which nobody pays.
    """

    cost_usd: float = 0.0
    tokens: dict[str, int] = field(default_factory=dict)
    ran_seconds: float | None = None


@dataclass(frozen=True)
class Returned(Ended):
    """The handler came back with an output."""

    output: object = None
    summary: str | None = None
    files_changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Raised(Ended):
    """The handler failed; `retryable` None leaves the judgement to the task's policy."""

    error_class: str
    message: str
    error_type: str = ""
    detail: str = ""
    retryable: bool | None = None
    wait_seconds: float | None = None


@dataclass(frozen=True)
class TimedOut(Ended):
    """The run used up its time: the task's own limit, or the plan's."""

    by_plan: bool


@dataclass(frozen=True)
class Stopped(Ended):
    """The run was ended because its owner cancelled the task."""


@dataclass(frozen=True)
class Suspended(Ended):
    """The run stopped because a budget is used up; a person is asked whether it may have more."""

    message: str = "a budget is used up"


@dataclass(frozen=True)
class Waiting(Ended):
    """The run ended until others have: the task goes on once all of them are over."""

    tasks: tuple[UUID, ...]


@dataclass(frozen=True)
class Interrupted(Ended):
    """We took the run away ourselves (shutdown, deploy): it costs its owner nothing."""

    reason: str = "shutdown"


@dataclass(frozen=True)
class Deferred(Ended):
    """The run could not do its work yet (busy agent, known rate limit): no attempt is spent."""

    wait_seconds: float
    reason: str = "rate_limit"


@dataclass(frozen=True)
class Expired(Ended):
    """The claim was never started in time; nobody is to blame."""

    reason: str = "claim_expired"


@dataclass(frozen=True)
class Died(Ended):
    """The run died by itself while its holder lives on, alone or among others of a bundle."""

    in_company: bool = False


@dataclass(frozen=True)
class Lost(Ended):
    """The run fell silent, and nobody saw it die by itself: our fault, so it is not billed."""

    in_company: bool = False


Result = (
    Returned
    | Raised
    | TimedOut
    | Stopped
    | Suspended
    | Waiting
    | Interrupted
    | Deferred
    | Expired
    | Died
    | Lost
)
