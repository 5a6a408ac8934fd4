"""Everything that can go wrong for a producer.

OvernightError               base of all
├── Refused                  the service answered no; `code`, `status`, `fields`, `retry_after`
│   ├── InvalidRequest       a field is wrong; `fields` names each with a legal value
│   │   └── InvalidGraph     tasks that cannot be one graph: a circle, an unknown name
│   ├── Unauthenticated      no valid API key
│   ├── Forbidden            the key may not do this
│   ├── TaskNotFound         no such task, or another user's
│   ├── TaskAlreadyCompleted too late to cancel
│   ├── DagNotFound          no such graph, or another user's
│   ├── DagAlreadyFinished   too late to cancel
│   ├── BulkNotFound         no such bulk operation, or another user's
│   ├── BulkAlreadyFinished  too late to cancel it
│   ├── NotRetryable         only what failed or was cancelled can be tried again
│   ├── NotEditable          only a task that nobody has can be changed
│   ├── PreconditionFailed   the task has changed since it was read
│   ├── NotDeadLettered      only an open dead letter can be resolved
│   ├── NotAwaitingApproval  only a task that asks for money can be given some
│   ├── TooManyPending       the user's cap on waiting work
│   ├── MonthlyLimitReached  the month's hours are used up
│   ├── UserDisabled         the task's owner is shut out, and it brings in no more
│   ├── SpawnTooDeep         a task so far down spawns no further ones
│   ├── TooManyChildren      the task has spawned as many as it may
│   ├── DagTooLarge          the graph has as many tasks as it may
│   ├── NotOrchestrator      only an orchestrator spawns for other agents
│   ├── AgentNotFound        no such agent, or another user's
│   ├── AgentOffline         the agent left or fell silent, and must register again
│   ├── NotStarted           a claim that must be started first
│   ├── TaskStopping         the task was asked to stop
│   ├── StaleAttempt         the attempt no longer holds its task
│   ├── TooManyStreams       you listen or wait in too many places already
│   ├── QueueFull            the whole system's cap; try again later
│   ├── TooManyRequests      this key asks too often; `retry_after` says when to come back
│   └── Unavailable          the service is up, its database is not
├── Unreachable              no answer from the service
├── NotUnderstood            something answered, but not an Overnight service
├── NotConfigured            no address or no key to call with
├── WaitTimedOut             the task had not ended in time; `task` is how it stood
├── DagWaitTimedOut          the graph had not ended in time; `dag` is how it stood
├── BulkWaitTimedOut         the operation had not ended in time; `bulk` is how it stood
├── TaskFailed               the awaited task ended without success; `task` says how
├── DagFailed                the awaited graph ended without success; `dag` says how
└── DuplicateHandler         two functions want the same type of task
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overnight.models.bulk import BulkOperation
    from overnight.models.dags import Dag
    from overnight.models.tasks import Task


class OvernightError(Exception):
    """Base of every error this package raises on purpose."""


@dataclass(frozen=True)
class FieldError:
    """One wrong field: its name, what is wrong with it, and what would do."""

    field: str
    message: str
    legal: str = ""


class Refused(OvernightError):
    """The service understood and said no; nothing was changed."""

    code = "REFUSED"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int = 0,
        fields: Sequence[FieldError] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.status = status
        self.fields = tuple(fields)
        self.retry_after = retry_after


class InvalidRequest(Refused):
    """A field is wrong; `fields` names each one and what would do."""

    code = "INVALID_REQUEST"


class InvalidGraph(InvalidRequest):
    """Tasks that cannot be one graph; `fields` names each place at fault and what would do."""

    code = "INVALID_GRAPH"


class Unauthenticated(Refused):
    """The API key is missing, wrong, expired or revoked."""

    code = "UNAUTHENTICATED"


class Forbidden(Refused):
    """The API key is good, but its scopes do not reach this far."""

    code = "FORBIDDEN"


class TaskNotFound(Refused):
    """No such task, or another user's."""

    code = "TASK_NOT_FOUND"


class TaskAlreadyCompleted(Refused):
    """The task has ended, so there is nothing left to cancel."""

    code = "TASK_ALREADY_COMPLETED"


class DagNotFound(Refused):
    """No such graph, or another user's."""

    code = "DAG_NOT_FOUND"


class DagAlreadyFinished(Refused):
    """Everything in the graph has ended, so there is nothing left to cancel."""

    code = "DAG_ALREADY_FINISHED"


class BulkNotFound(Refused):
    """No such bulk operation, or another user's."""

    code = "BULK_NOT_FOUND"


class BulkAlreadyFinished(Refused):
    """The bulk operation has ended, so there is nothing left to cancel."""

    code = "BULK_ALREADY_FINISHED"


class NotRetryable(Refused):
    """Only a task that failed for good or was cancelled can be tried again."""

    code = "NOT_RETRYABLE"


class NotEditable(Refused):
    """Only a task that waits, and that nobody has, can be changed."""

    code = "NOT_EDITABLE"


class PreconditionFailed(Refused):
    """The task has changed since it was read."""

    code = "PRECONDITION_FAILED"


class NotDeadLettered(Refused):
    """The task is in no open dead letter."""

    code = "NOT_DEAD_LETTERED"


class NotAwaitingApproval(Refused):
    """The task asks for no money."""

    code = "NOT_AWAITING_APPROVAL"


class TooManyPending(Refused):
    """You already have as much waiting work as is allowed."""

    code = "TOO_MANY_PENDING"


class UserDisabled(Refused):
    """The task's owner is shut out: it may end and report, but spawn nothing."""

    code = "USER_DISABLED"


class MonthlyLimitReached(Refused):
    """The hours of this billing month are used up."""

    code = "MONTHLY_LIMIT_REACHED"


class SpawnTooDeep(Refused):
    """A task so many generations below the one that was submitted spawns no further ones."""

    code = "SPAWN_TOO_DEEP"
    # Another run of the same task would be refused alike: the usual policies do not retry it.
    error_class = "spawn_refused"


class TooManyChildren(Refused):
    """The task has spawned as many as it may."""

    code = "TOO_MANY_CHILDREN"
    error_class = "spawn_refused"


class DagTooLarge(Refused):
    """The graph has as many tasks as it may."""

    code = "DAG_TOO_LARGE"
    error_class = "spawn_refused"


class NotOrchestrator(Refused):
    """Only a task submitted with the role orchestrator spawns for other agents than its own."""

    code = "NOT_ORCHESTRATOR"
    error_class = "spawn_refused"


class StaleAttempt(Refused):
    """The attempt no longer holds its task; its answer was not applied."""

    code = "STALE_ATTEMPT"


class TooManyStreams(Refused):
    """You listen or wait over as many connections as one user may."""

    code = "TOO_MANY_STREAMS"


class QueueFull(Refused):
    """The whole system holds as much waiting work as is allowed."""

    code = "QUEUE_FULL"


class TooManyRequests(Refused):
    """This key asks more often than it may; `retry_after` says when to come back."""

    code = "TOO_MANY_REQUESTS"


class Unavailable(Refused):
    """The service is up, but its database cannot be reached just now."""

    code = "DATABASE_UNAVAILABLE"


class Unreachable(OvernightError):
    """No answer from the service; for a create, the same call again is safe."""


class NotUnderstood(OvernightError):
    """Something answered that does not speak as an Overnight service does."""


class NotConfigured(OvernightError):
    """No address or no key: neither given nor found in any of the places they may stand."""


class WaitTimedOut(OvernightError):
    """The task had not ended in time; it goes on, and `task` is how it stood."""

    def __init__(self, task: Task, seconds: float) -> None:
        super().__init__(f"{task.id} is still {task.state} after {seconds:g} s")
        self.task = task


class DagWaitTimedOut(OvernightError):
    """The graph had not ended in time; it goes on, and `dag` is how it stood."""

    def __init__(self, dag: Dag, seconds: float) -> None:
        done = f"{dag.counts.total - dag.counts.open} of {dag.counts.total} tasks"
        super().__init__(f"{dag.id} is still {dag.status} after {seconds:g} s, {done} ended")
        self.dag = dag


class BulkWaitTimedOut(OvernightError):
    """The bulk operation had not ended in time; it goes on, and `bulk` is how it stood."""

    def __init__(self, bulk: BulkOperation, seconds: float) -> None:
        done = f"{bulk.done} of {bulk.total} tasks"
        super().__init__(f"{bulk.id} is still {bulk.state} after {seconds:g} s, {done} done")
        self.bulk = bulk


class DagFailed(OvernightError):
    """The awaited graph ended without success; `dag` says how."""

    def __init__(self, dag: Dag) -> None:
        why = ", ".join(
            f"{task.label} ({task.failure_reason or 'no reason was recorded'})"
            for task in dag.tasks
            if task.status == "failed"
        )
        super().__init__(f"{dag.id} ended as {dag.status}" + (f": {why}" if why else ""))
        self.dag = dag


class TaskFailed(OvernightError):
    """The awaited task ended without success; `task` says how."""

    def __init__(self, task: Task) -> None:
        why = task.error or task.failure_reason or "no reason was recorded"
        super().__init__(f"{task.id} ended as {task.state}: {why}")
        self.task = task


class DuplicateHandler(OvernightError):
    """Two functions want the same type of task; both are named."""

    def __init__(self, type: str, first: str, second: str) -> None:  # noqa: A002 - as in handler()
        super().__init__(f"two handlers for type {type!r}: {first} and {second}")
        self.type = type
        self.first = first
        self.second = second


class AgentNotFound(Refused):
    """No such agent, or another user's."""

    code = "AGENT_NOT_FOUND"


class AgentOffline(Refused):
    """The agent left or fell silent, and must register again."""

    code = "AGENT_OFFLINE"


class NotStarted(Refused):
    """The claim is good, but its run has not begun."""

    code = "NOT_STARTED"


class TaskStopping(Refused):
    """The task was asked to stop: it begins nothing new."""

    code = "TASK_STOPPING"


BY_CODE: dict[str, type[Refused]] = {
    kind.code: kind
    for kind in (
        InvalidRequest,
        InvalidGraph,
        Unauthenticated,
        Forbidden,
        TaskNotFound,
        TaskAlreadyCompleted,
        DagNotFound,
        DagAlreadyFinished,
        BulkNotFound,
        BulkAlreadyFinished,
        NotRetryable,
        NotEditable,
        PreconditionFailed,
        NotDeadLettered,
        NotAwaitingApproval,
        TooManyPending,
        MonthlyLimitReached,
        UserDisabled,
        SpawnTooDeep,
        TooManyChildren,
        DagTooLarge,
        NotOrchestrator,
        AgentNotFound,
        AgentOffline,
        NotStarted,
        TaskStopping,
        StaleAttempt,
        TooManyStreams,
        QueueFull,
        TooManyRequests,
        Unavailable,
    )
}
