"""Models of attempts, artifacts, dead letters, usage, locks, pauses, approvals and triggers."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Annotated, Any, Literal, TypedDict

from pydantic import ConfigDict, Field

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.dags import DagCreate
from overnight.models.execution import ProfileName
from overnight.models.field_types import (
    WEEK_SECONDS,
    Instant,
    JsonObject,
    Number,
    ShortText,
    Text,
    WholeNumber,
)

Note = Annotated[Text, Field(max_length=2_000)]
Tags = Annotated[tuple[ShortText, ...], Field(max_length=50)]
Title = Annotated[Text, Field(min_length=1, max_length=500)]
Description = Annotated[Text, Field(max_length=100_000)]
TimeOfDay = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]


class Attempt(ResponseModel):
    """One claim of a task and its outcome."""

    epoch: int = Field(description="The number of the claim, from 1.")
    pool: str = Field(description="The pool that claimed the task.")
    agent: str = Field(description="The worker or agent that claimed the task.")
    granted_seconds: int = Field(description="The time limit of the run, in seconds.")
    claimed_at: datetime = Field(description="When the task was claimed.")
    started_at: datetime | None = Field(
        None, description="When the run started; null if it has not."
    )
    ended_at: datetime | None = Field(None, description="When it ended; null if it has not.")
    outcome: str | None = Field(None, description="The outcome.")
    spent: bool = Field(description="Whether it counts against max_attempts.")
    error_class: str | None = Field(None, description="The error class, if it failed.")
    error: str | None = Field(None, description="The error message, if it failed.")
    detail: str | None = Field(
        None, description="More about the error, such as the traceback of the handler."
    )
    cost_usd: float = Field(description="The cost in US dollars.")
    tokens_used: dict[str, Any] = Field(
        default_factory=dict, description="Tokens that model calls used, as the run reported."
    )
    external_id: str | None = Field(
        None, description="The id of the run where it is executed; null for Python handlers."
    )
    sandbox: str | None = Field(
        None, description="The sandbox of the run, such as: bwrap, memory 2 GB, network off."
    )
    validator: str | None = Field(
        None, description="The method of the validator that rejected the output, if one did."
    )
    rejected_output: Any = Field(
        None, description="The rejected output; kept for the latest rejection of the task."
    )


class Artifact(ResponseModel):
    """An artifact that a run stored, without its content."""

    id: str = Field(description="The artifact's id.")
    task_id: str = Field(description="The task that stored it.")
    name: str = Field(description="The artifact's name, unique within its task.")
    kind: Literal["json", "text", "bytes"] = Field(description="The kind of content.")
    size: int = Field(description="The size in bytes.")
    created_at: datetime = Field(description="When it was stored.")


class LogChunk(ResponseModel):
    """A part of the log of a run: what it printed and logged."""

    id: str = Field(
        description="The position: the number of the run, a dot, and the number of the part. The"
        " log can be read on after it."
    )
    epoch: int = Field(description="The number of the run (claim), from 1.")
    seq: int = Field(description="The number of the part within its run, from 1.")
    at: datetime = Field(description="When it was written.")
    stream: Literal["stdout", "stderr", "log", "cut"] = Field(
        description="Where the text comes from; log has the lines of loggers and of ctx.log, cut"
        " stands for text that was not kept."
    )
    lines: int = Field(description="How many lines end in the text; of cut, how many are missing.")
    bytes: int = Field(description="The size of the text; of cut, how much is missing.")
    text: str = Field(description="The text, as it was written; it may hold control characters.")


class Notice(ResponseModel):
    """A notice for the user, such as that hours are running out."""

    id: int = Field(description="The number of the entry; later entries have larger numbers.")
    kind: str = Field(description="A code for programs, such as usage.80.")
    subject: str = Field(description="What the notice concerns.")
    task_id: str | None = Field(None, description="The task that it concerns, if there is one.")
    detail: dict[str, Any] = Field(default_factory=dict, description="The values behind it.")
    at: datetime = Field(description="When the notice was written.")


class DeadLetter(ResponseModel):
    """A task that failed permanently, with its failures."""

    task_id: str = Field(description="The task's id.")
    dag_id: str = Field(description="The id of the task's graph.")
    title: str = Field(description="The title.")
    type: str = Field(description="The type of the task.")
    task_type: str = Field("", description="The same as type.")
    agent_name: str | None = Field(None, description="The agent that must run the task, if any.")
    payload: dict[str, Any] = Field(description="The payload that the handler received.")
    attempts: int = Field(description="The number of runs that spent an attempt.")
    failure_reason: str | None = Field(None, description="The error class of the last failure.")
    error: str | None = Field(None, description="The error message of the last failure.")
    fingerprint: str = Field(description="A hash that is equal for failures of the same kind.")
    failure_history: list[dict[str, Any]] = Field(
        description="The failed runs that count towards max_attempts, oldest first."
    )
    total_cost_usd: float = Field(description="The cost of all runs in US dollars.")
    poison_pill: bool = Field(
        description="Whether the task seems to crash the processes that run it."
    )
    dead_lettered_at: datetime = Field(description="When the task was dead-lettered.")
    reviewed: bool = Field(default=False, description="Whether somebody has resolved it.")
    resolution: str | None = Field(None, description="retry, cancel, modify_and_retry or overrule.")
    resolved_at: datetime | None = Field(None, description="When the dead letter was resolved.")
    resolved_by: str | None = Field(None, description="Who resolved the dead letter.")
    note: str | None = Field(None, description="The note of that person.")


class DeadLetterGroup(ResponseModel):
    """Dead letters with the same kind of failure."""

    fingerprint: str = Field(
        description="The hash that they share; the list of dead letters can be filtered by it."
    )
    type: str = Field(description="The type of the tasks.")
    failure_reason: str | None = Field(None, description="The error class.")
    error: str | None = Field(None, description="The error message of the latest.")
    count: int = Field(description="The number of dead letters.")
    total_cost_usd: float = Field(description="The cost of their runs in US dollars.")
    first_at: datetime = Field(description="When the first was dead-lettered.")
    last_at: datetime = Field(description="When the latest was dead-lettered.")
    task_ids: list[str] = Field(description="The ids of the latest, at most ten.")


class TaskChanges(RequestModel):
    """Changes of a task that nobody has claimed; a field that is left out is not changed."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"title": "a better title", "priority": 2, "tags": ["night"]}]
        }
    )

    title: Title | None = Field(None, description="The title.")
    description: Description | None = Field(None, description="The description.")
    priority: WholeNumber | None = Field(None, ge=1, le=4, description="1 critical to 4 low.")
    priority_score: WholeNumber | None = Field(
        None,
        ge=0,
        le=100,
        description="The exact priority from 0 (most urgent) to 100; overrides priority.",
    )
    deadline_at: Instant | None = Field(
        None, description="The task fails if it has not started by then; null removes the deadline."
    )
    tags: Tags | None = Field(None, description="The new tags; they replace all existing ones.")
    timeout_seconds: WholeNumber | None = Field(
        None,
        ge=1,
        le=WEEK_SECONDS,
        description="The time limit of one run in seconds; null means the plan's limit.",
    )
    payload: JsonObject | None = Field(
        None, description="The new payload; it replaces the old one."
    )
    agent: ProfileName | None = Field(
        None,
        description="The agent profile, as it is now; only for a task that was created with one.",
    )
    start_at: Instant | None = Field(
        None,
        description="The task waits until then; null or a time that has passed lets it start at"
        " once. Only for a task that has never started.",
    )


class EditFields(TypedDict, total=False):
    """The fields of TaskChanges for type checkers.

    None removes a deadline, a timeout or a start time.
    """

    title: str
    description: str
    priority: int
    priority_score: int
    deadline_at: datetime | None
    tags: Sequence[str]
    timeout_seconds: int | None
    payload: Mapping[str, Any]
    agent: str
    start_at: datetime | None


class DeadLetterChanges(TaskChanges):
    """Changes of a dead-lettered task before it runs again."""

    spec: JsonObject | None = Field(None, description="The new spec; it replaces the old one.")


class TaskRetry(RequestModel):
    """Options of a retry; without a body the task runs again as it was."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"changes": {"payload": {"pages": 3}}, "attempts": 1}]}
    )

    note: Note = Field("", description="A note that is stored with the task's dead letter.")
    attempts: WholeNumber = Field(
        3, ge=1, le=100, description="How many further attempts the task gets."
    )
    changes: DeadLetterChanges | None = Field(
        None, description="Changes of the task before it runs again."
    )


class TaskOverrule(RequestModel):
    """Options of an overrule; no body is needed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"note": "the schema is wrong"}]})

    note: Note = Field("", description="A note that is stored with the task's dead letter.")


class ResolveRequest(RequestModel):
    """How to resolve a dead letter."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"resolution": "retry", "note": "the key is there now", "attempts": 3}]
        }
    )

    resolution: Literal["retry", "cancel", "modify_and_retry"] = Field(
        description="retry runs the task again, cancel does not, modify_and_retry changes it and"
        " runs it again."
    )
    note: Note = Field("", description="A note that is stored with the dead letter.")
    attempts: WholeNumber = Field(
        3, ge=1, le=100, description="How many further attempts the task gets."
    )
    changes: DeadLetterChanges | None = Field(
        None, description="The changes; only with modify_and_retry."
    )


class ResolveResult(ResponseModel):
    """The result of resolving a dead letter."""

    task_id: str = Field(description="The task's id.")
    resolution: str = Field(description="The resolution.")
    state: str = Field(description="The task's state now.")


class NightUsage(ResponseModel):
    """The cost of your runs of this night: the hours of the time window, or a day without one."""

    started_at: datetime | None = Field(
        None, description="When the first cost of the night was recorded."
    )
    ends_at: datetime | None = Field(None, description="When the night ends.")
    spent_usd: float = Field(description="The money spent, in US dollars.")
    reserved_usd: float = Field(description="The money reserved for running tasks.")
    limit_usd: float | None = Field(None, description="The night's budget; null means no limit.")


class ArtifactUsage(ResponseModel):
    """How many artifacts are stored, and how much room they take.

    What runs stored that were lost counts until it is deleted, a day later.
    """

    number: int = Field(description="How many artifacts are stored.")
    bytes: int = Field(description="Their size in bytes; equal contents count each time.")
    limit_bytes: int | None = Field(
        None, description="The largest size of all together; null means no limit."
    )


class Usage(ResponseModel):
    """The hours of this billing month, the money of this night, and the stored artifacts."""

    period_started_at: datetime = Field(description="When the billing month began.")
    resets_at: datetime = Field(description="When the hours are reset.")
    hours_used: float = Field(description="Hours used.")
    hours_reserved: float = Field(description="The hours reserved for running tasks.")
    hours_limit: float | None = Field(None, description="The limit of hours; null means no limit.")
    night: NightUsage = Field(description="The money of this night.")
    artifacts: ArtifactUsage = Field(description="The artifacts that are stored.")


class DayUsage(ResponseModel):
    """The hours that were charged on one day."""

    day: date = Field(description="The day, in UTC.")
    hours: float = Field(description="The hours charged, less those refunded.")
    runs: int = Field(description="How many runs were charged.")


class TypeUsage(ResponseModel):
    """The hours that were charged for tasks of one type."""

    type: str | None = Field(None, description="The type; null for corrections by an admin.")
    hours: float = Field(description="The hours charged, less those refunded.")
    runs: int = Field(description="How many runs were charged.")


class UsageBreakdown(ResponseModel):
    """The hours of this billing month by day and by type of task."""

    days: list[DayUsage] = Field(description="By day, the earliest first.")
    types: list[TypeUsage] = Field(description="By type, the most hours first.")


class LedgerLine(ResponseModel):
    """One charge or refund of time."""

    id: int = Field(description="The number of the entry; later entries have larger numbers.")
    kind: Literal["usage", "refund", "adjustment"] = Field(description="The kind of entry.")
    seconds: float = Field(description="The seconds charged; negative for a refund.")
    task_id: str | None = Field(None, description="The task, if the entry belongs to one.")
    epoch: int | None = Field(None, description="The number of the task's claim.")
    period_started_at: datetime = Field(description="The start of the billing month it belongs to.")
    note: str | None = Field(None, description="A note, if there is one.")
    recorded_at: datetime = Field(description="When the entry was written.")


class Lock(ResponseModel):
    """A lock that a running task holds."""

    key: str = Field(description="The key of the lock.")
    lock_id: str = Field(
        description="The id of the lock: the task's id and the Unix time at which it was acquired."
    )
    task_id: str = Field(description="The task that holds it.")
    title: str = Field(description="The title of that task.")
    project_id: str | None = Field(None, description="The project of that task.")
    state: str = Field(description="The state.")
    holder: str = Field(description="The worker that runs the task.")
    acquired_at: datetime = Field(description="When it began.")
    expires_at: datetime = Field(description="When it expires unless a heartbeat renews it.")
    waiting: int = Field(description="How many tasks at the front of the queue wait for it.")
    waiting_tasks: list[str] = Field(description="The ids of the first of them.")


class LockWait(ResponseModel):
    """One wait for a lock, recorded when the lock was released."""

    key: str = Field(description="The key of the lock.")
    holder_task_id: str = Field(description="The task that held it.")
    waiting_task_id: str = Field(description="The first task that waited.")
    waiting: int = Field(description="How many tasks waited.")
    since: datetime = Field(description="When it began.")
    until: datetime = Field(description="When it ended.")
    waited_seconds: float = Field(description="The duration in seconds.")


class PauseRequest(RequestModel):
    """A request to pause."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"note": "planned maintenance"}]})

    note: Note = Field("", description="The reason; explanations of waiting tasks show it.")


class Pause(ResponseModel):
    """An active pause."""

    scope: Literal["user", "pool", "all"] = Field(
        description="What is paused: one user, one worker pool, or all tasks."
    )
    target: str | None = Field(None, description="The user or pool; null for all tasks.")
    note: str | None = Field(None, description="The reason.")
    paused_by: str = Field(description="The actor who paused, for example user:ID.")
    paused_at: datetime = Field(description="When the pause began.")


class PauseState(ResponseModel):
    """The result of a pause or a resume."""

    paused: bool = Field(description="Whether it is paused now.")
    changed: bool = Field(description="False if it was in this state already.")


class Approval(ResponseModel):
    """A task that asks for a larger budget, because the budget cannot pay its next run."""

    task_id: str = Field(description="The task's id.")
    title: str = Field(description="The title.")
    type: str = Field(description="The type of the task.")
    budget: str = Field(description="The budget that does not suffice: task, dag or night.")
    needs_usd: float = Field(0.0, description="The expected cost of its next run.")
    spent_usd: float = Field(description="The money spent, in US dollars.")
    limit_usd: float | None = Field(None, description="The limit of the budget.")
    cost_usd: float = Field(description="The cost of the task so far.")
    since: datetime = Field(description="When it began to wait.")
    raised_by: Literal["owner", "operator"] = Field(
        "operator",
        description="Who can raise the budget: an operator if an operator set it, else the owner"
        " too.",
    )
    error: str | None = Field(None, description="The last error message of its run.")


class ApprovalRequest(RequestModel):
    """An approval of a larger budget."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"usd": 2.5}]})

    usd: Number = Field(ge=0.01, le=999_999, description="The US dollars to add to the budget.")


class ApprovalResult(ResponseModel):
    """The result of an approval."""

    budget: str = Field(description="The budget that was raised.")
    resumed: int = Field(description="How many tasks continue.")


class WindowRequest(RequestModel):
    """A daily time window in which a user's tasks may start."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"zone": "Europe/Berlin", "opens": "22:00", "closes": "06:00"}]
        }
    )

    zone: ShortText = Field(description="The time zone, such as Europe/Berlin.")
    opens: TimeOfDay = Field(description="The local time at which it opens, as HH:MM.")
    closes: TimeOfDay = Field(description="The local time at which it closes, as HH:MM.")
    at_closing: Literal["stop", "finish", "continue"] = Field(
        "finish", description="What happens to running tasks when it closes."
    )


class Window(ResponseModel):
    """The daily time window in which the user's tasks may start."""

    zone: str = Field(description="The time zone.")
    opens: str = Field(description="The local time at which it opens, as HH:MM.")
    closes: str = Field(description="The local time at which it closes, as HH:MM.")
    at_closing: str = Field(
        description="What happens to running tasks then: stop, finish or continue."
    )
    turns_at: datetime | None = Field(None, description="When it next opens or closes.")

    def __str__(self) -> str:
        """Return the window as `22:00-06:00 Europe/Berlin`."""
        return f"{self.opens}-{self.closes} {self.zone}"


class Me(ResponseModel):
    """The user whose key is used."""

    id: str = Field(description="The user's id.")
    name: str = Field(description="The user's name.")
    plan: str = Field(description="The user's plan.")
    is_admin: bool = Field(description="Whether the user is an admin.")
    running: int = Field(description="How many tasks are claimed or running.")
    waiting: int = Field(description="How many tasks are waiting.")
    paused: bool = Field(description="Whether the user's tasks are paused.")
    window: Window | None = Field(
        None, description="The time window in which tasks may start; null means any time."
    )


class TriggerCreate(RequestModel):
    """A graph to create when another graph has ended."""

    when: Literal["completed", "failed", "finished"] = Field(
        "completed", description="How the other graph must end; finished means completed or failed."
    )
    graph: DagCreate = Field(description="The graph to create.")


class Trigger(ResponseModel):
    """A trigger: creates a graph when another graph ends."""

    id: str = Field(description="The trigger's id.")
    dag_id: str = Field(description="The graph that starts this trigger when it ends.")
    when: str = Field(description="How that graph must end.")
    title: str = Field(description="The title of the graph that it creates.")
    tasks: int = Field(description="The number of tasks of that graph.")
    created_by: str = Field(description="Who created it.")
    created_at: datetime = Field(description="When it was created.")
    due_at: datetime | None = Field(None, description="When the condition was met.")
    refusal: str | None = Field(None, description="Why the graph could not be created yet.")
    refused_at: datetime | None = Field(None, description="When that was tried.")
    fired_at: datetime | None = Field(None, description="When it fired.")
    fired_dag_id: str | None = Field(None, description="The id of the graph that was created.")
    dropped_at: datetime | None = Field(None, description="When it was deleted.")


class TriggerDeleted(ResponseModel):
    """A trigger that was deleted."""

    id: str = Field(description="The trigger's id.")
    dropped: bool = Field(default=True, description="Always true.")
