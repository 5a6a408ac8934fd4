"""The ways in which a run can end, as its worker or the reaper reports them."""

from dataclasses import dataclass, field, replace
from uuid import UUID

from overnight.models.field_types import LONGEST_WAIT_SECONDS
from overnight.models.json_values import storable_text

MAX_TEXT = 10_000
MAX_NAME = 100
MAX_FILE_NAME = 4096
MAX_USD = 1_000_000
MAX_TOKENS = 2**53


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
    """The handler failed; with `retryable` None the task's retry policy decides.

    `validator` is the method of the validator that rejected the output, and `rejected` is that
    output with its summary and its changed files.
    """

    error_class: str
    message: str
    error_type: str = ""
    detail: str = ""
    retryable: bool | None = None
    wait_seconds: float | None = None
    validator: str | None = None
    rejected: dict[str, object] | None = None


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
class Busy(RunEnd):
    """The agent was too busy to run the task, which goes to the back of its owner's queue.

    `billed`: the owner's own agent had started the run, and what it worked is billed.
    """

    billed: bool = False


@dataclass(frozen=True)
class Released(RunEnd):
    """The owner's own agent gave the run back; what it worked is billed, whatever its reason.

    `earlier` is how often the owner's agents gave earlier runs of the task back.
    """

    reason: str = "shutdown"
    earlier: int = 0


@dataclass(frozen=True)
class Deferred(RunEnd):
    """The run could not do its work yet (rate limit); no attempt is counted."""

    wait_seconds: float
    reason: str = "rate_limit"


@dataclass(frozen=True)
class Expired(RunEnd):
    """The claim was not started in time; no attempt is counted."""

    reason: str = "claim_expired"


@dataclass(frozen=True)
class Died(RunEnd):
    """The process of the run died while its worker is alive; `in_bundle`: with other tasks.

    `out_of_memory`: the worker ended the process, because it used more memory than a run may.
    """

    in_bundle: bool = False
    out_of_memory: bool = False


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
    | Busy
    | Released
    | Deferred
    | Expired
    | Died
    | Lost
)


def bounded(result: Result) -> Result:
    """Return the result with texts, waits and amounts that the database can store.

    Everything that a handler or an agent reports passes here before it is judged. Texts lose NUL
    and are cut, waits end at LONGEST_WAIT_SECONDS, and amounts that cannot be true are left out.
    """
    measured = result.ran_seconds
    result = replace(
        result,
        cost_usd=result.cost_usd if 0 <= result.cost_usd <= MAX_USD else 0.0,
        tokens={
            storable_text(name, MAX_NAME): count
            for name, count in result.tokens.items()
            if 0 <= count <= MAX_TOKENS
        },
        ran_seconds=None if measured is None else _bounded_wait(measured),
    )
    match result:
        case Returned(summary=summary):
            return replace(
                result,
                summary=None if summary is None else storable_text(summary, MAX_TEXT),
                files_changed=tuple(
                    storable_text(name, MAX_FILE_NAME) for name in result.files_changed
                ),
            )
        case Raised(wait_seconds=wait):
            return replace(
                result,
                error_class=storable_text(result.error_class, MAX_NAME) or "error",
                message=storable_text(result.message, MAX_TEXT),
                detail=storable_text(result.detail, MAX_TEXT),
                wait_seconds=None if wait is None else _bounded_wait(wait),
            )
        case Deferred(wait_seconds=wait, reason=reason):
            return replace(
                result, wait_seconds=_bounded_wait(wait), reason=storable_text(reason, MAX_NAME)
            )
        case _:
            return result


def _bounded_wait(seconds: float) -> float:
    # A comparison with NaN is false, so NaN becomes the longest wait, not the shortest.
    return max(seconds, 0.0) if seconds <= LONGEST_WAIT_SECONDS else LONGEST_WAIT_SECONDS
