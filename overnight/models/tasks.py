"""What travels between a producer and the service, field by field."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypedDict

from pydantic import (
    AfterValidator,
    AliasChoices,
    ConfigDict,
    Field,
    model_validator,
)

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.enums import PlanTier, RetryStrategy, TaskStatus
from overnight.models.field_types import (
    DAY_SECONDS,
    WEEK_SECONDS,
    Instant,
    JsonObject,
    LockKey,
    Number,
    ShortText,
    Text,
    WholeNumber,
)
from overnight.models.json_values import check_text

# The pattern first: behind a check of our own it would not be described.
Creator = Annotated[
    str, Field(pattern=r"^(human|agent|cron):\S{1,100}$"), AfterValidator(check_text)
]


class RetryPolicy(RequestModel):
    """What should happen when a run fails."""

    strategy: RetryStrategy = Field(
        RetryStrategy.EXPONENTIAL, description="How the wait grows with each run."
    )
    initial_delay_sec: Number | None = Field(
        None,
        ge=0,
        le=DAY_SECONDS,
        description="The wait it grows from; left out, 10 s, or 5 s for quadratic.",
    )
    backoff_multiplier: Number = Field(
        2.0, ge=1, le=100, description="What each further exponential wait is multiplied by."
    )
    max_delay_sec: Number = Field(
        300.0, ge=0, le=WEEK_SECONDS, description="No wait is longer, jitter included."
    )
    jitter: bool = Field(
        default=True,
        strict=True,
        description="Whether waits are spread, from half to one and a half.",
    )
    retry_on: tuple[ShortText, ...] = Field(
        ("timeout", "crash", "rate_limit", "invalid_output", "error"),
        max_length=20,
        description="Error classes, or names of Python exceptions, worth another run.",
    )
    no_retry_on: tuple[ShortText, ...] = Field(
        ("auth_failure", "budget_exceeded", "cancelled"),
        max_length=20,
        description="Error classes that end the task at once; they win over retry_on.",
    )
    escalate_after: WholeNumber | None = Field(
        None,
        ge=1,
        le=100,
        description="Failed runs after which the task is escalated; null is never. Left out, the"
        " service's rule.",
    )
    escalate: Literal["event", "priority", "dead_letter"] = Field(
        "event",
        description="What that means: a notice, a higher priority too, or no further run.",
    )


class TaskCreate(RequestModel):
    """A task to be queued; only the title is needed."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"title": "say hello", "payload": {"hello": "world"}}]},
    )

    title: Annotated[Text, Field(min_length=1, max_length=500)] = Field(
        description="What people read in lists and reports."
    )
    description: Text = Field(
        "", max_length=100_000, description="More about it, for people and for agents."
    )
    project_id: ShortText | None = Field(
        None, description="Tasks of one project never run at the same time, unless settings say so."
    )
    priority: WholeNumber = Field(
        3, ge=1, le=4, description="1 critical, 2 high, 3 normal, 4 low; lower is more urgent."
    )
    priority_score: WholeNumber | None = Field(
        None, ge=0, le=100, description="The exact score, 0 most urgent; overrides priority."
    )
    priority_boost_per_minute: Number = Field(
        0.1, ge=0, le=100, description="How fast waiting makes the task more urgent."
    )
    type: ShortText | None = Field(
        None,
        validation_alias=AliasChoices("type", "task_type"),
        description="Which handler runs it; left out, the service's default type.",
    )
    payload: JsonObject = Field(
        default_factory=dict,
        description="What the handler works on; up to 256 KB of JSON, 32 levels deep.",
    )
    prompt: Text | None = Field(
        None, max_length=200_000, description="What an agent is asked to do; kept in spec.prompt."
    )
    spec: JsonObject = Field(
        default_factory=dict,
        description="How the runner should work (model, env, …); same bounds as payload.",
    )
    timeout_seconds: WholeNumber | None = Field(
        None,
        ge=1,
        le=WEEK_SECONDS,
        validation_alias=AliasChoices("timeout_seconds", "max_duration_sec"),
        description="How long one run may take; the plan's limit applies too.",
    )
    max_attempts: WholeNumber | None = Field(
        None, ge=1, le=100, description="How many runs may fail before the task is given up."
    )
    retry: RetryPolicy | None = Field(
        None, description="What happens when a run fails; left out, the service's policy."
    )
    required_capabilities: tuple[ShortText, ...] = Field(
        (), max_length=20, description="What a worker must offer to be given the task."
    )
    agent_name: Annotated[Text, Field(min_length=1, max_length=94)] | None = Field(
        None, description="The agent that must run it; the same as requiring agent: and its name."
    )
    locks: tuple[LockKey, ...] = Field(
        (),
        max_length=20,
        description="What it needs alone while it runs, such as repo:site; path:src takes all below"
        " it too. Left out, its project.",
    )
    idempotency_key: Annotated[Text, Field(min_length=1, max_length=255)] | None = Field(
        None, description="A second create with the same key answers with the first task."
    )
    context_refs: tuple[LockKey, ...] = Field(
        (),
        max_length=100,
        description="What it reads: task:ID:output of a task that has completed, or artifact:ID.",
    )
    workflow_id: ShortText | None = Field(
        None,
        validation_alias=AliasChoices("workflow_id", "dag_id"),
        description="A graph of yours that it joins; left out, it is one by itself.",
    )
    role: Literal["orchestrator"] | None = Field(
        None, description="An orchestrator may spawn tasks for other agents than its own."
    )
    deadline_at: Instant | None = Field(
        None, description="Not started by then, the task fails; with a UTC offset."
    )
    tags: tuple[ShortText, ...] = Field((), max_length=50, description="Words to find it by.")
    max_cost_usd: Number | None = Field(
        None,
        ge=0,
        le=999_999,
        description="What all runs of the task together may cost; then it pauses and asks.",
    )
    estimated_cost_usd: Number | None = Field(
        None,
        ge=0,
        le=999_999,
        description="What a run is thought to cost, kept free in every budget while it runs; left"
        " out, as much as it may.",
    )
    created_by: Creator | None = Field(
        None, description="Who asks, as human:, agent: or cron: and a name."
    )
    source: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] = Field(
        "api", description="Through which door it came: api, cli, web, scheduler."
    )

    @model_validator(mode="before")
    @classmethod
    def _named_by_its_type(cls, given: object) -> object:
        # Who speaks of a task_type knows no titles: the type is what people will read.
        if isinstance(given, dict) and "title" not in given and "task_type" in given:
            return {**given, "title": given["task_type"]}
        return given

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.prompt is not None and "prompt" in self.spec:
            raise ValueError("prompt is given twice, by itself and in spec")
        return self


class ChildFields(TypedDict, total=False):
    """The fields a task may have that another spawns; None counts as left out."""

    description: str | None
    project_id: str | None
    priority: int | None
    priority_score: int | None
    priority_boost_per_minute: float | None
    payload: dict[str, Any] | None
    prompt: str | None
    spec: dict[str, Any] | None
    timeout_seconds: int | None
    max_attempts: int | None
    retry: RetryPolicy | dict[str, Any] | None
    required_capabilities: Sequence[str] | None
    agent_name: str | None
    locks: Sequence[str] | None
    context_refs: Sequence[str] | None
    role: Literal["orchestrator"] | None
    deadline_at: datetime | None
    tags: Sequence[str] | None
    max_cost_usd: float | None
    estimated_cost_usd: float | None
    created_by: str | None
    source: str | None


class TaskFields(ChildFields, total=False):
    """The fields of TaskCreate besides its title, for editors; None counts as left out."""

    type: str | None
    idempotency_key: str | None
    workflow_id: str | None


class TaskResponse(ResponseModel):
    """A task as it stands."""

    id: str = Field(description="The task's name, task_ and a ULID.")
    queue_id: str = Field(description="The same id, under the name of the single-queue interface.")
    dag_id: str = Field(description="The graph it belongs to; a lone task has one of its own.")
    parent_id: str | None = Field(None, description="The task that spawned it, if one did.")
    title: str = Field(description="What people read.")
    description: str = Field("", description="More about it.")
    type: str = Field(description="Which handler runs it.")
    payload: dict[str, Any] = Field(default_factory=dict, description="What the handler works on.")
    status: TaskStatus = Field(description="Where it stands, in the small public set of words.")
    state: str = Field(description="Where it stands exactly, one of eleven states.")
    priority: int = Field(description="1 critical to 4 low.")
    priority_score: int = Field(description="The exact score, 0 to 100.")
    project_id: str | None = Field(None, description="The project it belongs to.")
    locks: list[str] = Field(default_factory=list, description="What it needs alone.")
    queue_position: int | None = Field(
        None, description="Its place among your own startable tasks, from 1, while it waits."
    )
    position: int | None = Field(None, description="The same number as queue_position.")
    created_at: datetime = Field(description="When it was accepted.")
    started_at: datetime | None = Field(None, description="When its latest run began.")
    completed_at: datetime | None = Field(None, description="When it ended, in whatever way.")
    result_summary: str | None = Field(None, description="The result in one line.")
    output: Any = Field(None, description="What the handler returned.")
    files_changed: list[str] | None = Field(None, description="Files the run says it changed.")
    failure_reason: str | None = Field(None, description="The class of the latest failure.")
    error: str | None = Field(None, description="The message of the latest failure.")
    attempts: int = Field(0, description="Runs that spent an attempt.")
    max_attempts: int = Field(description="How many may.")
    retry_at: datetime | None = Field(None, description="When it is tried again.")
    progress: dict[str, Any] | None = Field(None, description="The latest word from the run.")
    tags: list[str] = Field(default_factory=list, description="Words to find it by.")
    cost_usd: float = Field(0.0, description="What all its runs have cost.")
    max_cost_usd: float | None = Field(None, description="What they may; null is no limit.")
    wait_reason: str | None = Field(
        None,
        description="Why it is pending after a run: `approval` while it has used up a budget and"
        " asks for more, `children` while it waits for tasks that it spawned.",
    )
    agent_name: str | None = Field(None, description="The agent that must run it, if one is named.")
    timeout_seconds: int | None = Field(None, description="How long one run may take.")
    effective_timeout_seconds: int | None = Field(
        None, description="How long it may take with the plan's own limit counted."
    )
    deadline_at: datetime | None = Field(None, description="Not started by then, the task fails.")
    estimated_cost_usd: float | None = Field(
        None, description="What a run is thought to cost; null is as much as it may."
    )
    cancel_requested_at: datetime | None = Field(
        None, description="When a stop of the running task was asked for."
    )
    created_by: str = Field("", description="Who asked for it.")
    source: str = Field("", description="Through which door it came.")
    workflow_id: str = Field("", description="The same as dag_id.")
    task_type: str = Field("", description="The same as type.")
    error_info: dict[str, Any] | None = Field(
        None, description="The latest failure: its reason, its message and the attempts so far."
    )
    lease_owner: str | None = Field(None, description="The worker that has it now.")
    lease_expires_at: datetime | None = Field(
        None, description="When that worker must have been heard of again."
    )

    @property
    def is_final(self) -> bool:
        """Whether the task has ended."""
        return self.status.is_final


Task = TaskResponse


class Event(ResponseModel):
    """One change of a task's state, as the event stream tells it."""

    id: int = Field(description="Its place among all events; a stream is resumed after it.")
    kind: str = Field(description="What happened, such as task.completed.")
    task_id: str = Field(description="The task it happened to.")
    dag_id: str = Field(description="The graph the task belongs to.")
    from_state: str | None = Field(None, description="Where the task stood before.")
    state: str = Field(description="Where it stands since.")
    status: TaskStatus = Field(description="The same in the small public set of words.")
    epoch: int = Field(description="Which claim of the task it belongs to, from 1; 0 before any.")
    reason: str | None = Field(None, description="The class of the failure, if it was one.")
    at: datetime = Field(description="When it happened.")


class CancelResult(ResponseModel):
    """The answer to a cancel."""

    cancelled: bool = Field(default=True, description="The cancel was accepted.")
    state: str = Field(description="The task's state now; one that still runs was asked to stop.")


class QueueBlock(ResponseModel):
    """One thing that keeps all of your tasks waiting."""

    code: str = Field(description="A word for programs, as explain has them: paused, slots, …")
    message: str = Field(description="The same for people, with since when or until when.")


class QueueStatus(ResponseModel):
    """How much of yours runs and waits, against what your plan allows."""

    running: int = Field(description="Tasks that hold a slot.")
    pending: int = Field(description="Tasks that wait, for whatever reason.")
    max_concurrent: int = Field(description="How many may run at once.")
    can_start_more: bool = Field(description="Whether another task could start now.")
    monthly_hours_used: float = Field(description="Hours used in this billing month.")
    monthly_hours_limit: float | None = Field(None, description="Hours allowed; null is no limit.")
    held_by: list[QueueBlock] = Field(
        default_factory=list, description="What keeps new tasks from starting, if anything."
    )


class UserLimits(ResponseModel):
    """What your plan allows, and how much of it is used."""

    plan: PlanTier = Field(description="The plan you are on.")
    max_concurrent_agents: int = Field(description="How many tasks may run at once.")
    max_task_duration_minutes: int = Field(description="How long one run may take.")
    monthly_agent_hours_limit: float | None = Field(
        None, description="Hours a month; null is no limit."
    )
    monthly_agent_hours_used: float = Field(description="Hours used in this billing month.")
    billing_cycle_resets_at: datetime | None = Field(
        None, description="When the hours start again from zero."
    )
    monthly_agent_hours_promised: float = Field(
        0.0, description="Hours kept free for what runs; what is not used comes back."
    )
    on_exhausted: str = Field(
        "reject", description="What becomes of new tasks without hours: reject or hold."
    )
    pending: int = Field(0, description="Tasks that wait, for whatever reason.")
    pending_limit: int | None = Field(None, description="How many may wait.")
    night_budget_usd: float | None = Field(
        None, description="What a night may cost; null is no limit."
    )
    night_spent_usd: float = Field(0.0, description="What this night has cost.")
    night_left_usd: float | None = Field(
        None, description="What it can still pay, promises to runs taken off; null is no limit."
    )
    next_night_at: datetime | None = Field(None, description="When the next budget begins.")
    window: str | None = Field(None, description="When your tasks may start; null is always.")


class ExpectedTime(ResponseModel):
    """An instant nobody knows yet; null where it may well not come within a month."""

    p10_at: datetime | None = Field(None, description="One time in ten it comes before this.")
    p50_at: datetime | None = Field(None, description="As likely before this as after.")
    p90_at: datetime | None = Field(None, description="One time in ten it comes after this.")


class Forecast(ResponseModel):
    """When a task is expected to start and to end, simulated with the gate's own rules."""

    id: str = Field(description="The task's name.")
    title: str = Field("", description="What people read in lists.")
    type: str = Field(description="Which handler runs it.")
    state: str = Field(description="Where it stands.")
    queue_position: int | None = Field(
        None, description="Its place among your own startable tasks, from 1, while it waits."
    )
    start: ExpectedTime = Field(description="When it starts.")
    finish: ExpectedTime = Field(description="When its run ends.")
    observed_runs: int = Field(
        description="Runs of its type that were seen; 0 means its timeout stands for its duration."
    )
    nights: int = Field(description="How many times the queue was simulated.")
    made_at: datetime = Field(description="When this was foretold.")
    notes: list[str] = Field(default_factory=list, description="What limits the trust in it.")


class PlanEdge(RequestModel):
    """One dependency inside a batch; both are places in its list, from 0."""

    parent: WholeNumber = Field(ge=0, description="The task that is waited for.")
    child: WholeNumber = Field(ge=0, description="The task that waits.")


class PlanRequest(RequestModel):
    """A batch that might be queued."""

    tasks: tuple[TaskCreate, ...] = Field(
        min_length=1, max_length=1000, description="The tasks, each as it would be created."
    )
    edges: tuple[PlanEdge, ...] = Field(
        (), max_length=10_000, description="Which of them wait for which."
    )
    by_at: Instant | None = Field(
        None, description="The instant by which one would like to see them done."
    )


class PlannedTask(ResponseModel):
    """One task of a batch, and when it is expected."""

    title: str = Field(description="What people read.")
    type: str = Field(description="Which handler would run it.")
    start: ExpectedTime = Field(description="When it would start.")
    finish: ExpectedTime = Field(description="When its run would end.")


class Plan(ResponseModel):
    """What a batch would come to if it were queued now; nothing was."""

    tasks: int = Field(description="How many tasks the batch has.")
    by_at: datetime | None = Field(None, description="The instant that was asked about.")
    sure: int | None = Field(None, description="How many end by then in nine nights of ten.")
    likely: int | None = Field(None, description="How many end by then in every other night.")
    finish: ExpectedTime = Field(description="When the last of them would end.")
    steps: list[PlannedTask] = Field(description="Each task, in the order given.")
    nights: int = Field(description="How many times the queue was simulated.")
    made_at: datetime = Field(description="When this was foretold.")
    notes: list[str] = Field(default_factory=list, description="What limits the trust in it.")
