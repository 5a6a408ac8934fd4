"""Every error of Overnight, defined once for the service and its clients.

The service raises a subclass of `Refused`; the API writes it as `application/problem+json`; the
client reads the body and raises the same class again, found by its `code`.

OvernightError                 base of all errors
├── Refused                    the service refused a request; nothing was changed
│   ├── InvalidRequest         a field is wrong; `fields` lists each wrong field
│   │   ├── InvalidGraph       the tasks do not form a graph: a cycle or an unknown name
│   │   └── InvalidTemplate    no event could become a task by this template
│   ├── Unauthenticated        the API key is missing, wrong, expired or revoked
│   ├── Forbidden              the API key lacks a scope
│   ├── TooManyRequests        the user's request rate is exceeded; `retry_after` says how long
│   ├── RequestTimedOut        the body of the request did not arrive in time
│   ├── PreconditionRequired   an edit without the header If-Match
│   ├── PreconditionFailed     the task has changed since it was read
│   ├── TaskNotFound           the user has no such task
│   ├── DagNotFound            the user has no such graph
│   ├── BulkNotFound           the user has no such bulk operation
│   ├── TriggerNotFound        no such trigger, or it has already fired
│   ├── ScheduleNotFound       the user has no such schedule
│   ├── HookNotFound           the user has no such source of webhooks
│   ├── HookExists             the name is taken, or the user has too many sources
│   ├── RuleNotFound           the user has no such improvement rule
│   ├── RuleExists             the name is taken, or the user has too many rules
│   ├── DeliveryNotFound       the user has no such delivery, or it is no longer kept
│   ├── HookRefused            a webhook is not proven to come from the sender of an active source
│   ├── EventUnfit             an event was accepted as genuine, but no task could be made of it
│   ├── NightNotFound          the text is no date, or the night has not begun
│   ├── ArtifactNotFound       the user has no such artifact
│   ├── ChannelNotFound        the user has no notification channel of this name
│   ├── ArtifactChanged        a later run has replaced the artifact while it was read
│   ├── AgentNotFound          the user has no such agent
│   ├── KeyNotFound            the user has no such active API key
│   ├── UserNotFound           no such user
│   ├── AgentProfileNotFound   no such agent profile
│   ├── PoolNotFound           no such worker pool
│   ├── WorkerNotFound         no such worker, or the name matches several
│   ├── InboxRowNotFound       no such inbox row that can be retried or dropped
│   ├── FindingNotFound        no such open finding of the audit
│   ├── TaskAlreadyCompleted   the task has ended and cannot be cancelled
│   ├── DagAlreadyFinished     the graph has ended and cannot be cancelled
│   ├── BulkAlreadyFinished    the bulk operation has ended and cannot be cancelled
│   ├── NotRetryable           only a dead-lettered or cancelled task can be retried
│   │   └── DagNotRetryable    the graph has no such task
│   ├── NotOverrulable         only a task whose last output was rejected can be completed with it
│   ├── NotEditable            only a task that nobody has claimed can be changed
│   ├── NotDeadLettered        only an unresolved dead letter can be resolved
│   ├── DeliveryNotEnded       only a delivery that has ended can be sent again
│   ├── NotAwaitingApproval    only a task that waits for a budget approval can get one
│   ├── BudgetSetByOperator    only an operator can raise a budget that an operator set
│   ├── LockNotHeld            the task holds no lock
│   ├── TooManyPending         the user's limit of waiting tasks is reached
│   ├── TooManyStreams         the user's limit of open streams and long polls is reached
│   ├── QueueFull              the limit of waiting tasks of all users is reached
│   ├── MonthlyLimitReached    the hours of the billing month are used up
│   ├── StorageLimitReached    the user's artifacts would take more room than they may
│   ├── UserDisabled           the task's owner is disabled; no new tasks are accepted
│   ├── SpawnTooDeep           the task is too many levels below the submitted one to spawn
│   ├── TooManyChildren        the task has spawned as many tasks as it may
│   ├── DagTooLarge            the graph has as many tasks as it may
│   ├── NotOrchestrator        only an orchestrator may spawn tasks for other agents
│   ├── AgentOffline           the agent has left or timed out and must register again
│   ├── NotStarted             the claim must be started first
│   ├── TaskStopping           a stop of the task has been requested
│   ├── StaleAttempt           the attempt no longer holds its task
│   ├── Overloaded             the service is too busy, or stops; `retry_after` says how long
│   ├── StoreUnavailable       the service cannot use its artifact store
│   └── Unavailable            the service cannot use its database
├── Unreachable                the service did not respond
├── NotUnderstood              the response is not one of an Overnight service
├── NotConfigured              no address or no API key to call with
├── WaitTimedOut               the task had not ended in time; `task` is its last known state
├── DagWaitTimedOut            the graph had not ended in time; `dag` is its last known state
├── BulkWaitTimedOut           the operation had not ended in time; `bulk` is its last known state
├── TaskFailed                 the awaited task ended without success; see `task`
├── DagFailed                  the awaited graph ended without success; see `dag`
├── DuplicateHandler           two functions are registered for one type of task
└── NotFromCelery              something of Celery that a durable app cannot keep
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overnight.models.bulk import BulkOperation
    from overnight.models.dags import Dag
    from overnight.models.tasks import Task

# Members that every problem+json body has; the others are the error's `details`.
PROBLEM_MEMBERS = frozenset({"type", "title", "status", "detail", "code", "errors"})


class OvernightError(Exception):
    """Base of every error that Overnight raises on purpose."""


@dataclass(frozen=True)
class FieldError:
    """One wrong field: its name, what is wrong with it, and which values are legal."""

    field: str
    message: str
    legal: str = ""

    def __str__(self) -> str:
        legal = f"; legal: {self.legal}" if self.legal else ""
        return f"{self.field}: {self.message}{legal}"


class Refused(OvernightError):
    """The service refused a request; nothing was changed.

    `code` is the error code on the wire, `status` the HTTP status, `message` a sentence for
    people, `details` the values behind it, `fields` the wrong fields, and `retry_after` the
    seconds after which the same request may succeed.
    """

    code = "REFUSED"
    status = 400

    def __init__(
        self,
        message: str,
        *,
        fields: Sequence[FieldError] = (),
        retry_after: float | None = None,
        **details: object,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.fields = tuple(fields)
        self.retry_after = retry_after
        self.details = details


class InvalidRequest(Refused):
    """A field of the request is wrong; `fields` lists each wrong field and its legal values."""

    code = "INVALID_REQUEST"

    def __init__(self, field: str, message: str, *, legal: str = "") -> None:
        wrong = FieldError(field, message, legal)
        Refused.__init__(self, str(wrong), fields=[wrong])

    @classmethod
    def of_fields(cls, fields: Sequence[FieldError]) -> InvalidRequest:
        """Return one error for several wrong fields of a request body; its status is 422."""
        error = cls.__new__(cls)
        Refused.__init__(error, "; ".join(map(str, fields)), fields=fields)
        error.status = 422
        return error


class InvalidGraph(InvalidRequest):
    """The tasks do not form a graph; `fields` lists each field at fault."""

    code = "INVALID_GRAPH"
    status = 422

    def __init__(self, fields: Sequence[FieldError]) -> None:
        Refused.__init__(self, "; ".join(map(str, fields)), fields=fields)


class InvalidTemplate(InvalidRequest):
    """No event could become a task or graph by this template; `fields` lists the wrong fields."""

    code = "INVALID_TEMPLATE"
    status = 422

    def __init__(self, fields: Sequence[FieldError]) -> None:
        Refused.__init__(self, "; ".join(map(str, fields)), fields=fields)


class Unauthenticated(Refused):
    """The API key is missing, wrong, expired or revoked."""

    code = "UNAUTHENTICATED"
    status = 401

    def __init__(
        self,
        message: str = "authentication failed; send a valid API key in the header"
        " 'Authorization: Bearer KEY' or 'X-API-Key: KEY' (a token only in Authorization)",
    ) -> None:
        super().__init__(message)


class Forbidden(Refused):
    """The API key is valid, but it lacks a scope."""

    code = "FORBIDDEN"
    status = 403

    def __init__(self, scope: str) -> None:
        super().__init__(f"this key lacks the scope {scope}")


class TooManyRequests(Refused):
    """The user's requests exceed a limit; `headers` reports the rate limit to the caller."""

    code = "TOO_MANY_REQUESTS"
    status = 429

    def __init__(
        self, retry_after: int, headers: Mapping[str, str], why: str = "too many requests"
    ) -> None:
        super().__init__(f"{why}; try again in {retry_after} s", retry_after=retry_after)
        self.headers = headers


class RequestTimedOut(Refused):
    """The body of the request did not arrive in time."""

    code = "REQUEST_TIMED_OUT"
    status = 408

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the body of the request did not arrive within {seconds:g} s; nothing was changed"
        )


class PreconditionRequired(Refused):
    """The request to edit a task has no If-Match header, so its base version is unknown."""

    code = "PRECONDITION_REQUIRED"
    status = 428

    def __init__(self) -> None:
        super().__init__(
            "an edit needs the header If-Match: send the task's ETag, or * for any version"
        )


class PreconditionFailed(Refused):
    """The task has changed since it was read."""

    code = "PRECONDITION_FAILED"
    status = 412

    def __init__(self) -> None:
        super().__init__("the task has changed since; read it again and send its new ETag")


class TaskNotFound(Refused):
    """The user has no such task; whether another user has it is not disclosed."""

    code = "TASK_NOT_FOUND"
    status = 404

    def __init__(self) -> None:
        super().__init__("no such task")


class DagNotFound(Refused):
    """The user has no such graph."""

    code = "DAG_NOT_FOUND"
    status = 404

    def __init__(self) -> None:
        super().__init__("no such graph")


class BulkNotFound(Refused):
    """The user has no such bulk operation."""

    code = "BULK_NOT_FOUND"
    status = 404

    def __init__(self) -> None:
        super().__init__("no such bulk operation")


class TriggerNotFound(Refused):
    """The user has no such trigger, or it has fired or was deleted."""

    code = "TRIGGER_NOT_FOUND"
    status = 404

    def __init__(self) -> None:
        super().__init__("no such trigger, or it has already fired")


class ScheduleNotFound(Refused):
    """The user has no such schedule."""

    code = "SCHEDULE_NOT_FOUND"
    status = 404

    def __init__(self) -> None:
        super().__init__("no such schedule")


class HookNotFound(Refused):
    """The user has no such source of webhooks."""

    code = "HOOK_NOT_FOUND"
    status = 404

    def __init__(self) -> None:
        super().__init__("no such source of webhooks")


class HookExists(Refused):
    """Another source of webhooks of the user has this name, or there are too many."""

    code = "HOOK_EXISTS"
    status = 409


class RuleNotFound(Refused):
    """The user has no such improvement rule."""

    code = "RULE_NOT_FOUND"
    status = 404

    def __init__(self) -> None:
        super().__init__("no such rule")


class RuleExists(Refused):
    """Another improvement rule of the user has this name, or there are too many."""

    code = "RULE_EXISTS"
    status = 409


class DeliveryNotFound(Refused):
    """The user has no such delivery of a webhook, or it is no longer kept."""

    code = "DELIVERY_NOT_FOUND"
    status = 404

    def __init__(self) -> None:
        super().__init__("no such delivery, or its source was removed")


class HookRefused(Refused):
    """A webhook is not proven to come from the sender of an active source.

    The answer does not tell whether the source exists.
    """

    code = "HOOK_REFUSED"
    status = 401

    def __init__(self) -> None:
        super().__init__(
            "no active source of webhooks has this address and accepts this signature; nothing was"
            " changed"
        )


class EventUnfit(Refused):
    """An event was accepted as genuine, but no task could be made of it."""

    code = "EVENT_UNFIT"
    status = 422

    def __init__(self) -> None:
        super().__init__(
            "no task can be made of this event; the owner of the source sees the reason, and can"
            " replay the delivery"
        )


class ArtifactNotFound(Refused):
    """The user has no such artifact."""

    code = "ARTIFACT_NOT_FOUND"
    status = 404

    def __init__(self) -> None:
        super().__init__("no such artifact")


class ChannelNotFound(Refused):
    """The user has no notification channel of this name."""

    code = "CHANNEL_NOT_FOUND"
    status = 404

    def __init__(self) -> None:
        super().__init__("no such notification channel")


class ArtifactChanged(Refused):
    """A later run of the task has replaced the content since the first part was read."""

    code = "ARTIFACT_CHANGED"
    status = 412

    def __init__(self) -> None:
        super().__init__("a later run has replaced the artifact while it was read; read it again")


class NightNotFound(Refused):
    """There is no such night: the text is no date, or the night has not begun."""

    code = "NIGHT_NOT_FOUND"
    status = 404

    def __init__(self, day: str) -> None:
        super().__init__(
            f"no night {day!r} has begun: write the date on which it began, such as 2026-11-16, or"
            " latest"
        )


class AgentNotFound(Refused):
    """The user has no such agent."""

    code = "AGENT_NOT_FOUND"
    status = 404

    def __init__(self) -> None:
        super().__init__("no such agent")


class KeyNotFound(Refused):
    """The user has no such active API key."""

    code = "KEY_NOT_FOUND"
    status = 404

    def __init__(self) -> None:
        super().__init__("no such active API key")


class UserNotFound(Refused):
    """No such user."""

    code = "USER_NOT_FOUND"
    status = 404

    def __init__(self) -> None:
        super().__init__("no such user")


class AgentProfileNotFound(Refused):
    """There is no agent profile of this name."""

    code = "AGENT_PROFILE_NOT_FOUND"
    status = 404

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no agent profile {name!r}", name=name)


class PoolNotFound(Refused):
    """No worker has ever served a pool of this name."""

    code = "POOL_NOT_FOUND"
    status = 404

    def __init__(self, pool: str) -> None:
        super().__init__(f"there is no pool {pool!r}", pool=pool)


class WorkerNotFound(Refused):
    """No live worker has this name, or several match it."""

    code = "WORKER_NOT_FOUND"
    status = 404

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        several = f"{name!r} could be any of {', '.join(candidates)}"
        super().__init__(
            several if candidates else f"there is no worker {name!r}",
            name=name,
            candidates=list(candidates),
        )


class InboxRowNotFound(Refused):
    """No such inbox row, or its state does not allow the action."""

    code = "INBOX_ROW_NOT_FOUND"
    status = 404

    def __init__(self, row_id: int | str, legal: str) -> None:
        super().__init__(f"the inbox has no row {row_id} that {legal}", row_id=row_id)


class FindingNotFound(Refused):
    """No such finding of the audit, or it is not open."""

    code = "FINDING_NOT_FOUND"
    status = 404

    def __init__(self, finding_id: int | str) -> None:
        super().__init__(f"the audit has no open finding {finding_id}", finding_id=finding_id)


class TaskAlreadyCompleted(Refused):
    """The task has ended, so it cannot be cancelled."""

    code = "TASK_ALREADY_COMPLETED"

    def __init__(self, state: str) -> None:
        super().__init__(f"the task has already ended: {state}", state=state)


class DagAlreadyFinished(Refused):
    """The graph has ended, so it cannot be cancelled."""

    code = "DAG_ALREADY_FINISHED"
    status = 409

    def __init__(self, status: str) -> None:
        super().__init__(f"the graph has already ended: {status}", status=status)


class BulkAlreadyFinished(Refused):
    """The bulk operation has ended, so it cannot be cancelled."""

    code = "BULK_ALREADY_FINISHED"
    status = 409

    def __init__(self, state: str) -> None:
        super().__init__(f"the bulk operation has already ended: {state}", state=state)


class NotRetryable(Refused):
    """Only a dead-lettered or cancelled task can be retried."""

    code = "NOT_RETRYABLE"
    status = 409

    def __init__(self, state: str) -> None:
        super().__init__(
            f"only a dead-lettered or cancelled task can be retried; it is {state}", state=state
        )


class DagNotRetryable(NotRetryable):
    """No task of the graph is dead-lettered or cancelled, so none can be retried."""

    def __init__(self, status: str) -> None:
        Refused.__init__(
            self, f"no task of the graph can be retried; the graph is {status}", status=status
        )


class NotOverrulable(Refused):
    """Only a task whose last run ended with a rejected output can be completed with it."""

    code = "NOT_OVERRULABLE"
    status = 409

    def __init__(self, state: str) -> None:
        super().__init__(
            "only a retrying or dead-lettered task whose last output was rejected by a validator"
            f" can be overruled; it is {state}",
            state=state,
        )


class NotEditable(Refused):
    """Only a task that nobody has claimed can be changed."""

    code = "NOT_EDITABLE"
    status = 409

    def __init__(self, state: str) -> None:
        super().__init__(f"only a waiting task can be changed; it is {state}", state=state)


class NotDeadLettered(Refused):
    """Only an unresolved dead letter can be resolved."""

    code = "NOT_DEAD_LETTERED"
    status = 409

    def __init__(self, state: str) -> None:
        super().__init__(f"the task is not dead-lettered; it is {state}", state=state)


class DeliveryNotEnded(Refused):
    """Only a delivery that has ended can be sent again."""

    code = "DELIVERY_NOT_ENDED"
    status = 409

    def __init__(self, state: str) -> None:
        super().__init__(
            f"only a delivery that is delivered or dead can be sent again; it is {state}",
            state=state,
        )


class NotAwaitingApproval(Refused):
    """Only a task that has used up a budget waits for an approval."""

    code = "NOT_AWAITING_APPROVAL"
    status = 409

    def __init__(self, state: str) -> None:
        super().__init__(f"the task waits for no budget approval; it is {state}", state=state)


class BudgetSetByOperator(Refused):
    """Only an operator can raise a budget that an operator set; `budget` is `dag` or `night`."""

    code = "BUDGET_SET_BY_OPERATOR"
    status = 403

    def __init__(self, budget: str) -> None:
        name = "graph" if budget == "dag" else budget
        later = ", or wait until the next night begins" if budget == "night" else ""
        super().__init__(
            f"an operator set the {name} budget, so only an operator can raise it; nothing was"
            f" changed; ask an operator to approve more{later}",
            budget=budget,
        )


class LockNotHeld(Refused):
    """Only a task that holds a lock can be made to release it."""

    code = "LOCK_NOT_HELD"
    status = 409

    def __init__(self, state: str) -> None:
        super().__init__(f"the task holds no lock; it is {state}", state=state)


class TooManyPending(Refused):
    """The user's limit of waiting tasks is reached; `requested` is how many should be added."""

    code = "TOO_MANY_PENDING"

    def __init__(self, pending: int, limit: int, requested: int = 1) -> None:
        added = f" and {requested} more were requested" if requested > 1 else ""
        super().__init__(
            f"{pending} of your tasks are waiting{added}, but the limit is {limit}; each task of a"
            " graph counts. Nothing was added: wait until some have started, or cancel some. A"
            " larger batch can be sent in parts: `overnight batch` with the same file submits the"
            " rest each time. Or ask an operator for"
            f" `overnight user limits NAME --max-pending {pending + requested}`",
            pending=pending,
            limit=limit,
        )


class TooManyStreams(Refused):
    """The user's limit of open event streams and long polls is reached."""

    code = "TOO_MANY_STREAMS"
    status = 429

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"{limit} event streams and long polls are open, which is the limit; close one first",
            retry_after=5,
            limit=limit,
        )


class QueueFull(Refused):
    """The limit of waiting tasks of all users is reached."""

    code = "QUEUE_FULL"
    status = 503

    def __init__(self, depth: int, limit: int) -> None:
        super().__init__(
            f"queue is at capacity ({limit} tasks)", retry_after=5, depth=depth, limit=limit
        )


class MonthlyLimitReached(Refused):
    """The hours of this billing month are used up."""

    code = "MONTHLY_LIMIT_REACHED"
    status = 403

    def __init__(self, used_hours: float, limit_hours: float, resets_at: datetime) -> None:
        super().__init__(
            f"{used_hours:.2f} of {limit_hours:g} hours of this billing month are used;"
            f" the next month begins at {resets_at.astimezone(UTC):%Y-%m-%d %H:%MZ}",
            used_hours=round(used_hours, 2),
            limit_hours=limit_hours,
            resets_at=resets_at.isoformat(),
        )


class StorageLimitReached(Refused):
    """The artifacts of the user would take more room than the plan allows."""

    code = "STORAGE_LIMIT_REACHED"
    status = 403

    def __init__(self, stored_bytes: int, more_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"the user's artifacts take {stored_bytes} of {limit_bytes} bytes, and this one would"
            f" take {more_bytes} more; delete artifacts, or ask for a larger limit"
            " (artifact_storage_mb)",
            stored_bytes=stored_bytes,
            limit_bytes=limit_bytes,
        )


class UserDisabled(Refused):
    """The task's owner is disabled: running tasks may end and report, but add no tasks."""

    code = "USER_DISABLED"
    status = 403

    def __init__(self) -> None:
        super().__init__("the task's owner is disabled; running tasks may end, but add no tasks")


class SpawnTooDeep(Refused):
    """The task is too many levels below the submitted task to spawn further ones."""

    code = "SPAWN_TOO_DEEP"
    # Every run of the task would be refused alike, so the default retry policies do not retry it.
    error_class = "spawn_refused"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the task is {limit} levels below the submitted task and may not spawn further ones",
            limit=limit,
        )


class TooManyChildren(Refused):
    """The task has spawned as many tasks as it may."""

    code = "TOO_MANY_CHILDREN"
    error_class = "spawn_refused"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the task has spawned {limit} tasks and may spawn no more", limit=limit)


class DagTooLarge(Refused):
    """The graph has as many tasks as it may."""

    code = "DAG_TOO_LARGE"
    error_class = "spawn_refused"

    def __init__(self, total: int, limit: int) -> None:
        super().__init__(
            f"the graph has {total} tasks; a graph may have at most {limit}",
            total=total,
            limit=limit,
        )


class NotOrchestrator(Refused):
    """Only a task with the role orchestrator may spawn tasks for agents other than its own."""

    code = "NOT_ORCHESTRATOR"
    error_class = "spawn_refused"

    def __init__(self, wanted: str) -> None:
        super().__init__(
            f"{wanted}: only a task submitted with the role orchestrator may request this",
            wanted=wanted,
        )


class AgentOffline(Refused):
    """The agent has left, or has sent no heartbeat for too long."""

    code = "AGENT_OFFLINE"
    status = 409

    def __init__(self) -> None:
        super().__init__("the agent is offline; register it again")


class NotStarted(Refused):
    """The claim is valid, but its run has not been started."""

    code = "NOT_STARTED"
    status = 409

    def __init__(self) -> None:
        super().__init__("the claim has not been started; start it first")


class TaskStopping(Refused):
    """A stop of the task has been requested, so it may start nothing new."""

    code = "TASK_STOPPING"
    status = 409

    def __init__(self) -> None:
        super().__init__("the task was requested to stop")


class StaleAttempt(Refused):
    """The attempt no longer holds its task; its result was not applied."""

    code = "STALE_ATTEMPT"
    status = 409

    def __init__(self) -> None:
        super().__init__("this attempt no longer holds the task")


class Overloaded(Refused):
    """The service is too busy for this request, or it stops; the same request may succeed later."""

    code = "OVERLOADED"
    status = 503

    def __init__(self, why: str, retry_after: float = 2) -> None:
        super().__init__(f"{why}; try again in {retry_after:g} s", retry_after=retry_after)


class StoreUnavailable(Refused):
    """The service runs, but its artifact store cannot be reached, is full, or lacks a content."""

    code = "ARTIFACT_STORE_UNAVAILABLE"
    status = 503

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"the service cannot use its artifact store now: {problem}; try again later",
            retry_after=10,
        )


class Unavailable(Refused):
    """The service runs, but its database cannot be reached or refuses for the moment."""

    code = "DATABASE_UNAVAILABLE"
    status = 503

    def __init__(self) -> None:
        super().__init__(
            "the service cannot use its database now; try again in a few seconds", retry_after=2
        )


BY_CODE: dict[str, type[Refused]] = {
    kind.code: kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Refused) and "code" in vars(kind)
}


def from_problem(body: Mapping[str, object], status: int, retry_after: float | None) -> Refused:
    """Return the error that a problem+json body describes.

    A code that this release does not know becomes a plain `Refused` with that code.
    """
    code = str(body.get("code") or f"HTTP_{status}")
    kind = BY_CODE.get(code, Refused)
    message = str(body.get("detail") or f"the service responded with HTTP status {status}")
    listed = body.get("errors")
    fields = [
        FieldError(*(str(item.get(name) or "") for name in ("field", "message", "legal")))
        for item in (listed if isinstance(listed, list) else ())
        if isinstance(item, dict)
    ]
    error = kind.__new__(kind, message)
    # Not the constructor of the kind: the message is already written.
    Refused.__init__(error, message, fields=fields, retry_after=retry_after)
    error.details = {name: body[name] for name in body if name not in PROBLEM_MEMBERS}
    error.code, error.status = code, status
    return error


class Unreachable(OvernightError):
    """The service did not respond; repeating the same create call is safe."""


class NotUnderstood(OvernightError):
    """The response is not one that an Overnight service sends."""


class NotConfigured(OvernightError):
    """No address or no API key was passed, and none was found."""


class WaitTimedOut(OvernightError):
    """The task had not ended in time and continues; `task` is its last known state."""

    def __init__(self, task: Task, seconds: float) -> None:
        super().__init__(f"{task.id} is still {task.state} after {seconds:g} s")
        self.task = task


class DagWaitTimedOut(OvernightError):
    """The graph had not ended in time and continues; `dag` is its last known state."""

    def __init__(self, dag: Dag, seconds: float) -> None:
        ended = f"{dag.counts.total - dag.counts.open} of {dag.counts.total} tasks"
        super().__init__(f"{dag.id} is still {dag.status} after {seconds:g} s, {ended} ended")
        self.dag = dag


class BulkWaitTimedOut(OvernightError):
    """The bulk operation had not ended in time and continues; `bulk` is its last known state."""

    def __init__(self, bulk: BulkOperation, seconds: float) -> None:
        done = f"{bulk.done} of {bulk.total} tasks"
        super().__init__(f"{bulk.id} is still {bulk.state} after {seconds:g} s, {done} done")
        self.bulk = bulk


class TaskFailed(OvernightError):
    """The awaited task ended without success; `task` has its state and error."""

    def __init__(self, task: Task) -> None:
        reason = task.error or task.failure_reason or "no reason was recorded"
        super().__init__(f"{task.id} did not complete, it is {task.state}: {reason}")
        self.task = task


class DagFailed(OvernightError):
    """The awaited graph ended without success; `dag` has its status and failed tasks."""

    def __init__(self, dag: Dag) -> None:
        failures = ", ".join(
            f"{task.label} ({task.failure_reason or 'no reason was recorded'})"
            for task in dag.tasks
            if task.status == "failed"
        )
        reason = f": {failures}" if failures else ""
        super().__init__(f"{dag.id} did not complete, it is {dag.status}{reason}")
        self.dag = dag


class DuplicateHandler(OvernightError):
    """Two functions are registered for one type of task; the message names both."""

    def __init__(self, type: str, first: str, second: str) -> None:  # noqa: A002 - as in handler()
        super().__init__(f"two handlers for type {type!r}: {first} and {second}")
        self.type = type
        self.first = first
        self.second = second


class NotFromCelery(OvernightError):
    """Something of Celery that `overnight.celery` cannot keep; nothing was submitted.

    `feature` is its name in Celery, and `instead` says what to do.
    """

    def __init__(self, feature: str, instead: str) -> None:
        super().__init__(f"{feature} is not kept by overnight.celery: {instead}")
        self.feature = feature
        self.instead = instead
