"""What travels when somebody looks after tasks: what happened to them, and what holds them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

from pydantic import ConfigDict, Field

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.dags import DagCreate
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
    """One claim of a task, and what came of it."""

    epoch: int = Field(description="Which claim it was, from 1.")
    pool: str = Field(description="The pool that claimed it.")
    agent: str = Field(description="Who ran it, or was to.")
    granted_seconds: int = Field(description="How long it was allowed to run.")
    claimed_at: datetime = Field(description="When it was claimed.")
    started_at: datetime | None = Field(None, description="When it began to run, if it did.")
    ended_at: datetime | None = Field(None, description="When it ended, if it has.")
    outcome: str | None = Field(None, description="How it ended.")
    spent: bool = Field(description="Whether it used up one of the task's tries.")
    error_class: str | None = Field(None, description="The class of the failure, if it was one.")
    error: str | None = Field(None, description="The message of the failure.")
    cost_usd: float = Field(description="What it cost.")
    tokens_used: dict[str, Any] = Field(
        default_factory=dict, description="Tokens a model took, if the run said so."
    )


class Artifact(ResponseModel):
    """Something a run made for others to read, without its content."""

    id: str = Field(description="Its name, by which it is read.")
    task_id: str = Field(description="The task that made it.")
    name: str = Field(description="What its task calls it.")
    kind: Literal["json", "text", "bytes"] = Field(description="What it holds.")
    size: int = Field(description="How many bytes.")
    created_at: datetime = Field(description="When it was made.")


class Notice(ResponseModel):
    """Something you should hear of once."""

    id: int = Field(description="Its number; numbers grow.")
    kind: str = Field(description="A word for programs, such as usage.80.")
    subject: str = Field(description="What it is about.")
    task_id: str | None = Field(None, description="The task it is about, if it is one.")
    detail: dict[str, Any] = Field(default_factory=dict, description="The facts behind it.")
    at: datetime = Field(description="When it was noticed.")


class DeadLetter(ResponseModel):
    """A task that failed for good, and everything needed to judge it."""

    task_id: str = Field(description="The task.")
    dag_id: str = Field(description="Its graph.")
    title: str = Field(description="What people read.")
    type: str = Field(description="Which handler ran it.")
    payload: dict[str, Any] = Field(description="What the handler worked on.")
    attempts: int = Field(description="Runs that spent an attempt.")
    failure_reason: str | None = Field(None, description="The class of the last failure.")
    error: str | None = Field(None, description="Its message.")
    fingerprint: str = Field(description="The same for failures of the same kind.")
    failure_history: list[dict[str, Any]] = Field(description="Every run that spent an attempt.")
    total_cost_usd: float = Field(description="What all runs have cost.")
    poison_pill: bool = Field(description="Whether it seems to kill whoever runs it.")
    dead_lettered_at: datetime = Field(description="When it was given up.")
    resolution: str | None = Field(None, description="retry, cancel or modify_and_retry.")
    resolved_at: datetime | None = Field(None, description="When it was resolved.")
    resolved_by: str | None = Field(None, description="By whom.")
    note: str | None = Field(None, description="Why, in their words.")


class DeadLetterGroup(ResponseModel):
    """Dead letters that failed in the same way."""

    fingerprint: str = Field(description="What they have in common, to list them by.")
    type: str = Field(description="Which handler ran them.")
    failure_reason: str | None = Field(None, description="The class of the failure.")
    error: str | None = Field(None, description="The message of the latest.")
    count: int = Field(description="How many there are.")
    total_cost_usd: float = Field(description="What their runs have cost.")
    first_at: datetime = Field(description="When the first was given up.")
    last_at: datetime = Field(description="When the latest was.")
    task_ids: list[str] = Field(description="The latest of them, ten at most.")


class TaskChanges(RequestModel):
    """What may be changed of a task that nobody runs; what is left out stays as it is."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"title": "a better title", "priority": 2, "tags": ["night"]}]
        }
    )

    title: Title | None = Field(None, description="What people read.")
    description: Description | None = Field(None, description="More about it.")
    priority: WholeNumber | None = Field(None, ge=1, le=4, description="1 critical to 4 low.")
    priority_score: WholeNumber | None = Field(
        None, ge=0, le=100, description="The exact score, 0 most urgent; overrides priority."
    )
    deadline_at: Instant | None = Field(
        None, description="Not started by then, the task fails; null takes the deadline away."
    )
    tags: Tags | None = Field(None, description="Words to find it by; all of them.")
    timeout_seconds: WholeNumber | None = Field(
        None,
        ge=1,
        le=WEEK_SECONDS,
        description="How long one run may take; null leaves it to the plan.",
    )


class EditFields(TypedDict, total=False):
    """The fields of TaskChanges, for editors; None takes a deadline or a timeout away."""

    title: str
    description: str
    priority: int
    priority_score: int
    deadline_at: datetime | None
    tags: Sequence[str]
    timeout_seconds: int | None


class DeadLetterChanges(TaskChanges):
    """What may be changed of a task that failed for good before it runs again."""

    payload: JsonObject | None = Field(None, description="What the handler works on, whole.")
    spec: JsonObject | None = Field(None, description="How the runner should work, whole.")


class ResolveRequest(RequestModel):
    """What becomes of a dead letter."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"resolution": "retry", "note": "the key is there now", "attempts": 3}]
        }
    )

    resolution: Literal["retry", "cancel", "modify_and_retry"] = Field(
        description="Run it again, let it rest, or change it and run it again."
    )
    note: Note = Field("", description="Why; kept with the dead letter.")
    attempts: WholeNumber = Field(3, ge=1, le=100, description="How many further runs may fail.")
    changes: DeadLetterChanges | None = Field(
        None, description="What to change; only with modify_and_retry."
    )


class ResolveResult(ResponseModel):
    """A dead letter that was resolved."""

    task_id: str = Field(description="The task.")
    resolution: str = Field(description="What was done.")
    state: str = Field(description="Where the task stands now.")


class NightUsage(ResponseModel):
    """What your runs cost tonight; a night is the window's, or the day's."""

    started_at: datetime | None = Field(None, description="When money was first spent in it.")
    ends_at: datetime | None = Field(None, description="When it is over.")
    spent_usd: float = Field(description="What was spent.")
    reserved_usd: float = Field(description="What running tasks may still spend.")
    limit_usd: float | None = Field(None, description="What may be spent; null is no limit.")


class Usage(ResponseModel):
    """Hours of this billing month, and money of this night."""

    period_started_at: datetime = Field(description="When the billing month began.")
    resets_at: datetime = Field(description="When the hours start again from zero.")
    hours_used: float = Field(description="Hours used.")
    hours_reserved: float = Field(description="Hours that running tasks may still use.")
    hours_limit: float | None = Field(None, description="Hours allowed; null is no limit.")
    night: NightUsage = Field(description="Money of this night.")


class LedgerLine(ResponseModel):
    """Seconds charged or given back."""

    id: int = Field(description="Its number; numbers grow.")
    kind: Literal["usage", "refund", "adjustment"] = Field(description="Why it is there.")
    seconds: float = Field(description="Seconds charged; negative if they were given back.")
    task_id: str | None = Field(None, description="The task, if it is one's.")
    epoch: int | None = Field(None, description="Which claim of the task.")
    period_started_at: datetime = Field(description="The billing month it counts for.")
    note: str | None = Field(None, description="Why, if somebody said so.")
    recorded_at: datetime = Field(description="When it was written.")


class Lock(ResponseModel):
    """A lock that a running task holds."""

    key: str = Field(description="What it holds alone.")
    lock_id: str = Field(description="The task and the second it took the lock.")
    task_id: str = Field(description="Who holds it.")
    title: str = Field(description="What people read of that task.")
    project_id: str | None = Field(None, description="Its project.")
    state: str = Field(description="Where it stands.")
    holder: str = Field(description="The worker that runs it.")
    acquired_at: datetime = Field(description="Since when.")
    expires_at: datetime = Field(description="When it must have been heard of again.")
    waiting: int = Field(description="How many tasks at the front of the queue need it.")
    waiting_tasks: list[str] = Field(description="The first of them.")


class LockWait(ResponseModel):
    """One time a lock came free while tasks waited for it."""

    key: str = Field(description="What was held.")
    holder_task_id: str = Field(description="Who held it.")
    waiting_task_id: str = Field(description="Who waited first.")
    waiting: int = Field(description="How many waited.")
    since: datetime = Field(description="Since when.")
    until: datetime = Field(description="Until when.")
    waited_seconds: float = Field(description="For how long.")


class PauseRequest(RequestModel):
    """Why nothing new should start."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"note": "moving deployment"}]})

    note: Note = Field("", description="Why; shown to whoever asks what holds a task.")


class Pause(ResponseModel):
    """Something that is paused."""

    scope: Literal["user", "pool", "all"] = Field(description="How far it reaches.")
    target: str | None = Field(None, description="Which user or pool; null is everything.")
    note: str | None = Field(None, description="Why.")
    paused_by: str = Field(description="By whom.")
    paused_at: datetime = Field(description="Since when.")


class PauseState(ResponseModel):
    """The answer to a pause or a resume."""

    paused: bool = Field(description="Whether it is paused now.")
    changed: bool = Field(description="False if it was so already.")


class Approval(ResponseModel):
    """A task that has used up a budget and asks for more."""

    task_id: str = Field(description="The task.")
    title: str = Field(description="What people read.")
    type: str = Field(description="Which handler runs it.")
    budget: str = Field(description="Which budget is used up: task, dag or night.")
    spent_usd: float = Field(description="What was spent of it.")
    limit_usd: float | None = Field(None, description="What might have been.")
    cost_usd: float = Field(description="What the task has cost so far.")
    since: datetime = Field(description="Since when it asks.")
    error: str | None = Field(None, description="What its run said last.")


class ApprovalRequest(RequestModel):
    """How much more may be spent."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"usd": 2.5}]})

    usd: Number = Field(ge=0.01, le=999_999, description="How many dollars more.")


class ApprovalResult(ResponseModel):
    """What an approval came to."""

    budget: str = Field(description="Which budget was raised.")
    resumed: int = Field(description="How many tasks go on.")


class WindowRequest(RequestModel):
    """The hours in which a user's work may start."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"zone": "Europe/Berlin", "opens": "22:00", "closes": "06:00"}]
        }
    )

    zone: ShortText = Field(description="Whose wall clock, such as Europe/Berlin.")
    opens: TimeOfDay = Field(description="When it opens, as HH:MM.")
    closes: TimeOfDay = Field(description="When it closes, as HH:MM.")
    at_closing: Literal["stop", "finish", "continue"] = Field(
        "finish", description="What becomes of the work when it closes."
    )


class Window(ResponseModel):
    """The hours in which your work may start."""

    zone: str = Field(description="Whose wall clock.")
    opens: str = Field(description="When it opens, as HH:MM.")
    closes: str = Field(description="When it closes, as HH:MM.")
    at_closing: str = Field(description="What becomes of the work then: stop, finish, continue.")
    turns_at: datetime | None = Field(None, description="When it next opens or closes.")

    def __str__(self) -> str:
        """Return the window as `22:00-06:00 Europe/Berlin`."""
        return f"{self.opens}-{self.closes} {self.zone}"


class Me(ResponseModel):
    """Who you are here."""

    id: str = Field(description="Your id.")
    name: str = Field(description="Your name.")
    plan: str = Field(description="The plan you are on.")
    is_admin: bool = Field(description="Whether you may look after others.")
    running: int = Field(description="Tasks that hold a slot.")
    waiting: int = Field(description="Tasks that wait.")
    paused: bool = Field(description="Whether nothing new of yours starts.")
    window: Window | None = Field(
        None, description="The hours your work may start in; null is all."
    )


class TriggerCreate(RequestModel):
    """A graph to let in when another has ended."""

    when: Literal["completed", "failed", "finished"] = Field(
        "completed", description="How the other graph must end; finished is in any way."
    )
    graph: DagCreate = Field(description="What to let in then.")


class Trigger(ResponseModel):
    """What a graph's end sets off."""

    id: str = Field(description="The trigger's name.")
    dag_id: str = Field(description="The graph whose end it waits for.")
    when: str = Field(description="How that must end.")
    title: str = Field(description="What it lets in.")
    tasks: int = Field(description="How many tasks that has.")
    created_by: str = Field(description="Who asked for it.")
    created_at: datetime = Field(description="When.")
    due_at: datetime | None = Field(None, description="When the other graph ended so.")
    refusal: str | None = Field(None, description="Why it could not be let in yet.")
    refused_at: datetime | None = Field(None, description="When that was.")
    fired_at: datetime | None = Field(None, description="When it was let in.")
    fired_dag_id: str | None = Field(None, description="As which graph.")
    dropped_at: datetime | None = Field(None, description="When it was taken back.")


class TriggerDeleted(ResponseModel):
    """A trigger that was taken back."""

    id: str = Field(description="The trigger's name.")
    dropped: bool = Field(default=True, description="It fires no more.")
