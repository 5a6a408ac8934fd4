"""What an HTTP agent has answered, and what follows from it: pure decisions without IO."""

from dataclasses import dataclass
from enum import StrEnum

from overnight.models.agents import TaskResult
from overnight.models.http_agents import TaskAnswer
from overnight_server.domain.claims import Run
from overnight_server.domain.results import Busy, Died, Raised, Result
from overnight_server.outcome.agent_claims import completed, failed, spending

CONFLICT = 409
UNAUTHORIZED = frozenset({401, 403})
TIMEOUT = "timeout"
# An answer that cannot be read is asked for again; so many in a row end the run.
UNREADABLE_ANSWERS = 3


@dataclass(frozen=True)
class Accepted:
    """The agent has taken the task: it answered 201 or 202, or another 2xx."""


@dataclass(frozen=True)
class Rejected:
    """The agent answered with a status that is an error; `detail` is the start of its answer."""

    status: int
    detail: str = ""


@dataclass(frozen=True)
class NotSent:
    """No connection was made, so the agent cannot have got the request."""

    reason: str


@dataclass(frozen=True)
class NoAnswer:
    """The request was sent, and it is unknown what became of it."""

    reason: str


Submission = Accepted | Rejected | NotSent | NoAnswer


@dataclass(frozen=True)
class TaskPresent:
    """The agent has the task; this is its state."""

    task: TaskAnswer


@dataclass(frozen=True)
class TaskAbsent:
    """The agent says that it does not have the task; `boot_id` names the process that says so."""

    boot_id: str


@dataclass(frozen=True)
class UnreadableAnswer:
    """The agent answered something that is not a state of a task, or is too large."""

    reason: str
    too_large: bool = False


# What an agent answers to the question whether it has a task: yes, no, or nothing that tells.
TaskLookup = TaskPresent | TaskAbsent | UnreadableAnswer | NoAnswer


class EndReason(StrEnum):
    """Why the service ends a run at its agent."""

    CANCEL = "cancel"
    BUDGET = "budget"
    WINDOW = "window_closed"
    TIMEOUT = "timeout"
    REMOVED = "agent removed"


def after_submission(submission: Rejected | NotSent) -> Result:
    """Return how a run ends that its agent did not take.

    A busy agent costs nothing. What the agent calls a fault of the request is final; what is a
    fault of the agent is retried, and counts.
    """
    match submission:
        case NotSent(reason):
            return Raised("agent_unreachable", reason, retryable=True, ran_seconds=0.0)
        case Rejected(status=status) if status == CONFLICT:
            return Busy(ran_seconds=0.0)
        case Rejected(status, detail):
            is_final = status < 500  # noqa: PLR2004 - the classes of HTTP statuses
            message = f"the agent answered {status}{f': {detail}' if detail else ''}"
            kind = "auth_failure" if status in UNAUTHORIZED else "agent_refused"
            return Raised(
                kind if is_final else "agent_error",
                message,
                retryable=not is_final,
                ran_seconds=0.0,
            )


def after_absence(absence: TaskAbsent, *, was_accepted: bool, boot_id: str | None) -> Result:
    """Return how a run ends whose agent says that it does not have the task.

    The process that was asked before and never accepted it has not begun it. In every other case
    work may have been lost with a process that has ended: the run has crashed.
    """
    if not was_accepted and boot_id is not None and absence.boot_id == boot_id:
        return Raised("agent_unreachable", TIMEOUT, retryable=True, ran_seconds=0.0)
    return Died()


def after_unreadable(answer: UnreadableAnswer) -> Result:
    """Return how a run ends whose agent cannot say what it did; too large an answer is final."""
    return Raised(
        "invalid_output",
        f"the agent's state of the task cannot be read: {answer.reason}",
        retryable=False if answer.too_large else None,
    )


def result_of(task: TaskAnswer, run: Run) -> Result:
    """Return the result of a run that has ended at its agent."""
    if task.state == "completed":
        return completed(TaskResult.model_construct(**task.result_fields()), run)
    if task.state == "cancelled":
        return Raised("agent_cancelled", "the agent cancelled the task", **spending(task))
    return failed(task, run)
