"""How a run can end, as seen by whoever watched it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Returned:
    """The handler came back with an output."""

    output: object = None
    summary: str | None = None
    files_changed: tuple[str, ...] = ()
    cost_usd: float = 0.0
    tokens: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Raised:
    """The handler failed; `retryable` None leaves the judgement to the task's policy."""

    error_class: str
    message: str
    error_type: str = ""
    detail: str = ""
    retryable: bool | None = None
    wait_seconds: float | None = None
    cost_usd: float = 0.0
    tokens: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedOut:
    """The run used up its time: the task's own limit, or the plan's."""

    by_plan: bool


@dataclass(frozen=True)
class Stopped:
    """The run was ended because its owner cancelled the task."""


@dataclass(frozen=True)
class Interrupted:
    """We took the run away ourselves (shutdown, deploy): it costs its owner nothing."""

    reason: str = "shutdown"


@dataclass(frozen=True)
class Deferred:
    """The run could not do its work yet (busy agent, known rate limit): no attempt is spent."""

    wait_seconds: float
    reason: str = "rate_limit"


@dataclass(frozen=True)
class Expired:
    """The claim was never started in time; nobody is to blame."""

    reason: str = "claim_expired"


@dataclass(frozen=True)
class Died:
    """The run died by itself under a worker that lives on."""


@dataclass(frozen=True)
class Lost:
    """Worker or host vanished with the run: our fault, so it is not billed."""


Result = Returned | Raised | TimedOut | Stopped | Interrupted | Deferred | Expired | Died | Lost
