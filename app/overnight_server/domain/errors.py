"""What can be wrong with a request, each with the code the wire shows.

Refused                      base of all; `code`, `message`, `details`
├── InvalidRequest           a field is wrong; names it and a legal value
├── InvalidGraph             tasks that cannot be one graph; names every field at fault
├── UserNotFound             no such user
├── UserDisabled             whose tasks they are is shut out, and brings in no more
├── PoolNotFound             no such pool
├── WorkerNotFound           no such worker, or several could be meant
├── TaskNotFound             no such task, or another user's
├── TaskAlreadyFinished      too late to cancel
├── DagNotFound              no such graph
├── TriggerNotFound          no such trigger, or it has fired
├── DagAlreadyFinished       too late to cancel it
├── BulkNotFound             no such bulk operation, or another user's
├── BulkAlreadyFinished      too late to cancel it
├── NotRetryable             only what failed for good or was cancelled can be tried again
├── AgentNotFound            no such agent, or another user's
├── AgentOffline             the agent has left, or was silent for too long
├── ArtifactNotFound         no such artifact, or another user's
├── InboxRowNotFound         no such row in the inbox that could be retried or dropped
├── KeyNotFound              no such key in force, or another user's
├── NotAwaitingApproval      only a task that asks for money can be given some
├── NotDeadLettered          only a dead letter can be resolved
├── NotEditable              only a task that nobody has can be changed
├── StaleEdition             the task was changed since it was read
├── LockNotHeld              only a lock that is held can be released
├── TooManyPending           the user's cap on waiting work
├── TooManyStreams           the user's cap on open streams and waits
├── QueueFull                the whole system's cap
├── MonthlyLimitReached      the month's hours are used up
├── SpawnTooDeep             children of children end somewhere
├── TooManyChildren          a task's cap on what it spawns
├── DagTooLarge              a graph's cap on its tasks
├── NotOrchestrator          only an orchestrator spawns for other agents
├── TaskStopping             its owner has asked the task to stop
├── NotStarted               the claim is good, but its run has not begun
└── StaleAttempt             the claim is no longer held
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from overnight_server.domain.reasons import at


class Refused(Exception):
    """A request that was understood and refused; nothing was changed."""

    code = "REFUSED"

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidRequest(Refused):
    """A field is wrong; `field` names it, `fault` says what is, and `legal` what would do."""

    code = "INVALID_REQUEST"

    def __init__(self, field: str, message: str, *, legal: str) -> None:
        super().__init__(f"{field}: {message}; legal: {legal}", field=field, legal=legal)
        self.fault = message


class InvalidGraph(Refused):
    """Tasks that cannot be one graph; `faults` names every field at fault and what would do."""

    code = "INVALID_GRAPH"

    def __init__(self, faults: Sequence[Mapping[str, str]]) -> None:
        super().__init__(
            "; ".join(
                f"{one['field']}: {one['message']}"
                + (f"; legal: {one['legal']}" if one.get("legal") else "")
                for one in faults
            )
        )
        self.faults = [dict(one) for one in faults]


class UserNotFound(Refused):
    """No such user."""

    code = "USER_NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("no such user")


class UserDisabled(Refused):
    """The owner is shut out: what runs may end and report, but bring in nothing new."""

    code = "USER_DISABLED"

    def __init__(self) -> None:
        super().__init__("the task's owner is disabled; what runs may end, but add no tasks")


class PoolNotFound(Refused):
    """No worker has ever served a pool of this name."""

    code = "POOL_NOT_FOUND"

    def __init__(self, pool: str) -> None:
        super().__init__(f"there is no pool {pool!r}", pool=pool)


class WorkerNotFound(Refused):
    """No living worker goes by this name, or several do."""

    code = "WORKER_NOT_FOUND"

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        several = f"{name!r} could be any of {', '.join(candidates)}"
        super().__init__(
            several if candidates else f"there is no worker {name!r}",
            name=name,
            candidates=list(candidates),
        )


class TaskNotFound(Refused):
    """No such task, or another user's: the two look exactly alike."""

    code = "TASK_NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("no such task")


class DagNotFound(Refused):
    """No such graph; a lone task has a ceiling of its own instead."""

    code = "DAG_NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("no such graph")


class AgentNotFound(Refused):
    """No such agent."""

    code = "AGENT_NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("no such agent")


class AgentOffline(Refused):
    """The agent has left, or was silent for so long that it was written off."""

    code = "AGENT_OFFLINE"

    def __init__(self) -> None:
        super().__init__("the agent is offline; register it again")


class ArtifactNotFound(Refused):
    """No such artifact, or another user's: the two look exactly alike."""

    code = "ARTIFACT_NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("no such artifact")


class InboxRowNotFound(Refused):
    """No such row in the inbox, or one that is past this."""

    code = "INBOX_ROW_NOT_FOUND"

    def __init__(self, row_id: int, legal: str) -> None:
        super().__init__(f"the inbox has no row {row_id} that {legal}", row_id=row_id)


class KeyNotFound(Refused):
    """No such API key in force, or another user's: the two look exactly alike."""

    code = "KEY_NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("no such key in force")


class NotEditable(Refused):
    """Only a task that waits, and that nobody has, can be changed."""

    code = "NOT_EDITABLE"

    def __init__(self, state: str) -> None:
        super().__init__(f"only a waiting task can be changed; it is {state}", state=state)


class StaleEdition(Refused):
    """The task was changed since it was read; whoever edits it should look again first."""

    code = "PRECONDITION_FAILED"

    def __init__(self) -> None:
        super().__init__("the task has changed since; read it again, and send its new ETag")


class NotAwaitingApproval(Refused):
    """Only a task that has used up a budget waits for an approval."""

    code = "NOT_AWAITING_APPROVAL"

    def __init__(self, state: str) -> None:
        super().__init__(f"the task does not ask for money; it is {state}", state=state)


class TaskAlreadyFinished(Refused):
    """The task has ended, so there is nothing left to cancel."""

    code = "TASK_ALREADY_COMPLETED"

    def __init__(self, state: str) -> None:
        super().__init__(f"the task has already ended: {state}", state=state)


class TriggerNotFound(Refused):
    """No such trigger, or another user's, or one that has fired or was dropped."""

    code = "TRIGGER_NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("no such trigger that could still fire")


class DagAlreadyFinished(Refused):
    """The graph has ended, so there is nothing left to cancel."""

    code = "DAG_ALREADY_FINISHED"

    def __init__(self, status: str) -> None:
        super().__init__(f"the graph has already ended: {status}", status=status)


class BulkNotFound(Refused):
    """No such bulk operation, or another user's: the two look exactly alike."""

    code = "BULK_NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("no such bulk operation")


class BulkAlreadyFinished(Refused):
    """The bulk operation has ended, so there is nothing left to cancel."""

    code = "BULK_ALREADY_FINISHED"

    def __init__(self, state: str) -> None:
        super().__init__(f"the bulk operation has already ended: {state}", state=state)


class NotRetryable(Refused):
    """Only a task that failed for good or was cancelled can be tried again."""

    code = "NOT_RETRYABLE"

    def __init__(self, state: str) -> None:
        super().__init__(
            f"only a task that failed for good or was cancelled can be retried; it is {state}",
            state=state,
        )


class DagNotRetryable(NotRetryable):
    """Nothing of the graph has failed for good or was cancelled, so nothing can come back."""

    def __init__(self, status: str) -> None:
        super(NotRetryable, self).__init__(
            f"nothing of the graph can be retried; it is {status}", status=status
        )


class NotDeadLettered(Refused):
    """Only a task in the dead letters can be resolved."""

    code = "NOT_DEAD_LETTERED"

    def __init__(self, state: str) -> None:
        super().__init__(f"the task is not in the dead letters but {state}", state=state)


class LockNotHeld(Refused):
    """Only a task that holds a lock can be made to release it."""

    code = "LOCK_NOT_HELD"

    def __init__(self, state: str) -> None:
        super().__init__(f"the task holds no lock; it is {state}", state=state)


class TooManyPending(Refused):
    """The user already has as much waiting work as is allowed."""

    code = "TOO_MANY_PENDING"

    def __init__(self, pending: int, limit: int, asked: int = 1) -> None:
        more = f" and {asked} more came" if asked > 1 else ""
        super().__init__(
            f"{pending} tasks are waiting{more}; at most {limit} may",
            pending=pending,
            limit=limit,
        )


class TooManyStreams(Refused):
    """The user listens or waits over as many connections as is allowed."""

    code = "TOO_MANY_STREAMS"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} streams and waits are open; at most {limit} may", limit=limit)


class QueueFull(Refused):
    """The whole system holds as much waiting work as is allowed."""

    code = "QUEUE_FULL"

    def __init__(self, depth: int, limit: int) -> None:
        super().__init__(f"queue is at capacity ({limit} tasks)", depth=depth, limit=limit)


class MonthlyLimitReached(Refused):
    """The hours of this billing month are used up."""

    code = "MONTHLY_LIMIT_REACHED"

    def __init__(self, used_hours: float, limit_hours: float, resets_at: datetime) -> None:
        super().__init__(
            f"{used_hours:.2f} of {limit_hours:g} hours are used; they return at {at(resets_at)}",
            used_hours=round(used_hours, 2),
            limit_hours=limit_hours,
            resets_at=resets_at.isoformat(),
        )


class SpawnTooDeep(Refused):
    """A task so many generations below the one that was submitted spawns no more."""

    code = "SPAWN_TOO_DEEP"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the task stands {limit} generations below the one that was submitted, and may not"
            " spawn further ones",
            limit=limit,
        )


class TooManyChildren(Refused):
    """The task has spawned as many as it may."""

    code = "TOO_MANY_CHILDREN"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the task has spawned {limit} tasks; it may spawn no more", limit=limit)


class DagTooLarge(Refused):
    """The graph has as many tasks as it may."""

    code = "DAG_TOO_LARGE"

    def __init__(self, total: int, limit: int) -> None:
        super().__init__(
            f"the graph has {total} tasks; at most {limit} may be in one", total=total, limit=limit
        )


class NotOrchestrator(Refused):
    """Only a task with the role orchestrator spawns for agents other than its own."""

    code = "NOT_ORCHESTRATOR"

    def __init__(self, wanted: str) -> None:
        super().__init__(
            f"{wanted}: only a task submitted with the role orchestrator may ask for that",
            wanted=wanted,
        )


class TaskStopping(Refused):
    """The task's owner has asked it to stop: it begins nothing new."""

    code = "TASK_STOPPING"

    def __init__(self) -> None:
        super().__init__("the task was asked to stop")


class NotStarted(Refused):
    """The claim is held, but nobody has said that its run begins."""

    code = "NOT_STARTED"

    def __init__(self) -> None:
        super().__init__("the claim has not been started; start it first")


class StaleAttempt(Refused):
    """The claim this answer belongs to is no longer held; the answer was not applied."""

    code = "STALE_ATTEMPT"

    def __init__(self) -> None:
        super().__init__("this attempt no longer holds the task")
