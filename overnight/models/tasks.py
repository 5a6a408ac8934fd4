"""Models of tasks, events, limits, forecasts and plans."""

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
from overnight.models.execution import (
    Network,
    ProfileName,
    RefText,
    RepositoryText,
    RunLimits,
    Runner,
)
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
from overnight.models.validation import MAX_VALIDATORS, OutputValidator

# The pattern precedes the validator: pydantic omits a later pattern from the JSON schema.
Creator = Annotated[
    str, Field(pattern=r"^(human|agent|cron):\S{1,100}$"), AfterValidator(check_text)
]


class RetryPolicy(RequestModel):
    """What happens when a run fails."""

    strategy: RetryStrategy = Field(
        RetryStrategy.EXPONENTIAL, description="How the wait grows with each failed run."
    )
    initial_delay_sec: Number | None = Field(
        None,
        ge=0,
        le=DAY_SECONDS,
        description="The first wait in seconds; the default is 10, or 5 for quadratic.",
    )
    backoff_multiplier: Number = Field(
        2.0, ge=1, le=100, description="The factor between two exponential waits."
    )
    max_delay_sec: Number = Field(
        300.0, ge=0, le=WEEK_SECONDS, description="The longest wait in seconds, jitter included."
    )
    jitter: bool = Field(
        default=True,
        strict=True,
        description="Whether each wait is multiplied by a random factor from 0.5 to 1.5.",
    )
    retry_on: tuple[ShortText, ...] = Field(
        ("timeout", "crash", "rate_limit", "invalid_output", "error"),
        max_length=20,
        description="Error classes, or names of Python exceptions, that are retried.",
    )
    no_retry_on: tuple[ShortText, ...] = Field(
        ("auth_failure", "budget_exceeded", "cancelled"),
        max_length=20,
        description="Error classes that are never retried; this overrides retry_on.",
    )
    escalate_after: WholeNumber | None = Field(
        None,
        ge=1,
        le=100,
        description="The number of failed runs after which the task is escalated; null means never."
        " The default is the service's rule.",
    )
    escalate: Literal["event", "priority", "dead_letter"] = Field(
        "event",
        description="event writes a notice, priority also raises the priority, dead_letter ends"
        " the task.",
    )


class Constraints(RequestModel):
    """The object `constraints` in a task's spec; its limits apply like the task's own fields."""

    max_cost_usd: Number | None = Field(
        None, ge=0, le=999_999, description="The same as max_cost_usd of the task."
    )
    max_duration_sec: WholeNumber | None = Field(
        None, ge=1, le=WEEK_SECONDS, description="The same as timeout_seconds of the task."
    )
    required_capabilities: tuple[ShortText, ...] = Field(
        (), max_length=20, description="More capabilities that a worker must offer."
    )
    model_preferences: tuple[ShortText, ...] = Field(
        (), max_length=20, description="The models to use, the best first; see ctx.model."
    )
    fallback_models: tuple[ShortText, ...] = Field(
        (), max_length=20, description="The models of the second and later attempts."
    )


class TaskBody(RequestModel):
    """The fields of every new task; only the title is required."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"title": "say hello", "payload": {"hello": "world"}}]},
    )

    title: Annotated[Text, Field(min_length=1, max_length=500)] = Field(
        description="The title, shown in lists and reports."
    )
    description: Text = Field(
        "", max_length=100_000, description="The description, for people and agents."
    )
    project_id: ShortText | None = Field(
        None,
        description="The project; by default tasks of one project do not run at the same time.",
    )
    priority: WholeNumber = Field(
        3,
        ge=1,
        le=4,
        description="1 critical, 2 high, 3 normal, 4 low; lower is more urgent. The service may"
        " have another default.",
    )
    priority_score: WholeNumber | None = Field(
        None,
        ge=0,
        le=100,
        description="The exact priority from 0 (most urgent) to 100; overrides priority.",
    )
    priority_boost_per_minute: Number = Field(
        0.1,
        ge=0,
        le=100,
        description="By how much the score falls per minute of waiting, which makes the task more"
        " urgent.",
    )
    type: ShortText | None = Field(
        None,
        validation_alias=AliasChoices("type", "task_type"),
        description="The type, which selects the handler; the service's default type if left out.",
    )
    payload: JsonObject = Field(
        default_factory=dict,
        description="The handler's input; at most 256 KB of JSON, 32 levels deep.",
    )
    prompt: Text | None = Field(
        None, max_length=200_000, description="The prompt for an agent; stored as spec.prompt."
    )
    keep_log: bool = Field(
        default=False,
        description="Store the whole output of each run as the artifact log; stored as"
        " spec.keep_log.",
    )
    output_validation: tuple[OutputValidator, ...] = Field(
        (),
        max_length=MAX_VALIDATORS,
        description="Validators of the output, which must all accept it before the task completes;"
        " stored as spec.output_validation.",
    )
    spec: JsonObject = Field(
        default_factory=dict,
        description="Options of the runner (model, argv, env, …); same limits as payload. Its"
        " object constraints may have max_cost_usd, max_duration_sec, required_capabilities,"
        " model_preferences and fallback_models.",
    )
    runner: Runner | None = Field(
        None,
        description="What carries out its runs: python (the handler of its type, the default),"
        " command (the program in spec.argv, in a sandbox) or http (an agent that the service"
        " calls).",
    )
    agent: ProfileName | None = Field(
        None,
        description="The agent profile that says which command runs it, and with what; as it is"
        " when the task is created.",
    )
    network: Network | None = Field(
        None,
        description="For the runner command: off (the default), or the hosts that a run may reach:"
        ' {"allow": [host, …]}; the plan and the agent profile limit them.',
    )
    repo: RepositoryText | None = Field(
        None,
        description="For the runner command: the git repository to work on, a path that the"
        " worker's operator allows or an https URL. Tasks of one repository run one after the"
        " other.",
    )
    ref: RefText | None = Field(
        None, description="The branch, tag or commit to start from; the repository's own if absent."
    )
    parallel: bool = Field(
        default=False,
        strict=True,
        description="Whether it may run beside other tasks of its repository; each has a branch.",
    )
    limits: RunLimits | None = Field(
        None,
        description="For the runner command: what a run may use; the plan limits it.",
    )
    timeout_seconds: WholeNumber | None = Field(
        None,
        ge=1,
        le=WEEK_SECONDS,
        validation_alias=AliasChoices("timeout_seconds", "max_duration_sec"),
        description="The time limit of one run in seconds; the plan's limit applies too.",
    )
    max_attempts: WholeNumber | None = Field(
        None,
        ge=1,
        le=100,
        description="How many attempts may fail before the task is dead-lettered.",
    )
    retry: RetryPolicy | None = Field(
        None, description="The retry policy; the service's policy if left out."
    )
    required_capabilities: tuple[ShortText, ...] = Field(
        (), max_length=20, description="The capabilities that a worker must offer."
    )
    agent_name: Annotated[Text, Field(min_length=1, max_length=94)] | None = Field(
        None,
        description="The agent that must run it; the same as requiring the capability agent:NAME.",
    )
    locks: tuple[LockKey, ...] = Field(
        (),
        max_length=20,
        description="Locks that it holds while it runs, such as repo:site; path:src includes all"
        " paths below. The default is its project.",
    )
    idempotency_key: Annotated[Text, Field(min_length=1, max_length=255)] | None = Field(
        None, description="A second create with the same key returns the first task."
    )
    context_refs: tuple[LockKey, ...] = Field(
        (),
        max_length=100,
        description="Inputs: task:ID:output of a completed task, or artifact:ID.",
    )
    workflow_id: ShortText | None = Field(
        None,
        validation_alias=AliasChoices("workflow_id", "dag_id"),
        description="The graph to add it to; a new graph of one task if left out.",
    )
    role: Literal["orchestrator"] | None = Field(
        None, description="An orchestrator may spawn tasks for agents other than its own."
    )
    deadline_at: Instant | None = Field(
        None,
        validation_alias=AliasChoices("deadline_at", "deadline"),
        description="The task fails if it has not started by then; with a UTC offset.",
    )
    start_at: Instant | None = Field(
        None,
        validation_alias=AliasChoices("start_at", "available_at"),
        description="The task waits until then; with a UTC offset. A time that has passed has no"
        " effect.",
    )
    tags: tuple[ShortText, ...] = Field((), max_length=50, description="Tags for searching.")
    max_cost_usd: Number | None = Field(
        None,
        ge=0,
        le=999_999,
        description="What all runs together may cost; then the task waits for an approval.",
    )
    estimated_cost_usd: Number | None = Field(
        None,
        ge=0,
        le=999_999,
        description="The expected cost of a run, reserved in every budget while it runs; the"
        " default is max_cost_usd.",
    )
    created_by: Creator | None = Field(
        None,
        description="Who creates it: human:NAME, agent:NAME or cron:NAME; the caller if left out.",
    )
    source: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] = Field(
        "api", description="The source: api, cli, web, scheduler."
    )

    @model_validator(mode="before")
    @classmethod
    def _default_title(cls, value: object) -> object:
        # Clients that send task_type have no titles, so the type becomes the title.
        if isinstance(value, dict) and "title" not in value and "task_type" in value:
            return {**value, "title": value["task_type"]}
        return value

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.prompt is not None and "prompt" in self.spec:
            raise ValueError("prompt is given twice: as a field and in spec")
        if self.output_validation and "output_validation" in self.spec:
            raise ValueError("output_validation is given twice: as a field and in spec")
        return self


class TaskCreate(TaskBody):
    """A task to create; only the title is required."""

    depends_on: tuple[ShortText, ...] = Field(
        (),
        max_length=1000,
        description="Ids of tasks that must complete first; the task joins their graph.",
    )


class ChildFields(TypedDict, total=False):
    """The fields of a spawned task, for type checkers; None means not given."""

    description: str | None
    project_id: str | None
    priority: int | None
    priority_score: int | None
    priority_boost_per_minute: float | None
    payload: dict[str, Any] | None
    prompt: str | None
    keep_log: bool | None
    output_validation: Sequence[OutputValidator | dict[str, Any]] | None
    spec: dict[str, Any] | None
    runner: Runner | None
    agent: str | None
    network: Network | dict[str, Any] | None
    limits: RunLimits | dict[str, Any] | None
    repo: str | None
    ref: str | None
    parallel: bool | None
    timeout_seconds: int | None
    max_attempts: int | None
    retry: RetryPolicy | dict[str, Any] | None
    required_capabilities: Sequence[str] | None
    agent_name: str | None
    locks: Sequence[str] | None
    context_refs: Sequence[str] | None
    role: Literal["orchestrator"] | None
    deadline_at: datetime | None
    start_at: datetime | None
    tags: Sequence[str] | None
    max_cost_usd: float | None
    estimated_cost_usd: float | None
    created_by: str | None
    source: str | None


class TaskFields(ChildFields, total=False):
    """The fields of TaskCreate besides the title, for type checkers; None means not given."""

    type: str | None
    idempotency_key: str | None
    workflow_id: str | None
    depends_on: Sequence[str] | None


class TaskResponse(ResponseModel):
    """A task."""

    id: str = Field(description="The task's id: task_ and a ULID.")
    queue_id: str = Field(description="The same id, under its name in the single-queue API.")
    dag_id: str = Field(description="The task's graph; a task submitted alone has a graph of one.")
    parent_id: str | None = Field(None, description="The task that spawned it, if any.")
    title: str = Field(description="The title.")
    description: str = Field("", description="The description.")
    type: str = Field(description="The type of the task.")
    payload: dict[str, Any] = Field(default_factory=dict, description="The handler's input.")
    status: TaskStatus = Field(description="The public status.")
    state: str = Field(description="The exact state, one of eleven.")
    priority: int = Field(description="1 critical to 4 low.")
    priority_score: int = Field(description="The exact priority, 0 to 100.")
    project_id: str | None = Field(None, description="The task's project.")
    locks: list[str] = Field(default_factory=list, description="Locks that it holds while it runs.")
    queue_position: int | None = Field(
        None,
        description="The position among your own tasks that can start, from 1; null unless it"
        " waits.",
    )
    position: int | None = Field(None, description="The same as queue_position.")
    created_at: datetime = Field(description="When it was created.")
    started_at: datetime | None = Field(None, description="When its latest run started.")
    completed_at: datetime | None = Field(None, description="When it ended.")
    result_summary: str | None = Field(None, description="The result in one line.")
    output: Any = Field(None, description="The handler's return value.")
    files_changed: list[str] | None = Field(
        None, description="The files that the run reported as changed."
    )
    failure_reason: str | None = Field(None, description="The error class of the latest failure.")
    error: str | None = Field(None, description="The error message of the latest failure.")
    attempts: int = Field(0, description="The number of runs that spent an attempt.")
    max_attempts: int = Field(description="The maximum number of attempts.")
    retry_at: datetime | None = Field(None, description="When it runs again.")
    progress: dict[str, Any] | None = Field(
        None, description="The latest progress report of the run."
    )
    tags: list[str] = Field(default_factory=list, description="Tags for searching.")
    cost_usd: float = Field(0.0, description="The cost of all its runs.")
    max_cost_usd: float | None = Field(
        None, description="The limit of that cost; null means no limit."
    )
    wait_reason: str | None = Field(
        None,
        description="Why it is pending after a run: `approval` if it has used up a budget,"
        " `children` if it waits for tasks that it spawned.",
    )
    agent_name: str | None = Field(None, description="The agent that must run it, if any.")
    runner: str = Field("python", description="What carries out its runs.")
    agent: str | None = Field(None, description="The agent profile that it was created with.")
    execution: dict[str, Any] | None = Field(
        None,
        description="How its command runs: argv, env, network, limits and models, as the agent"
        " profile was when the task was created; null for other runners.",
    )
    output_validation: list[dict[str, Any]] = Field(
        default_factory=list, description="The validators of its output, in the order of their use."
    )
    timeout_seconds: int | None = Field(None, description="The time limit of one run.")
    effective_timeout_seconds: int | None = Field(
        None, description="The smaller of timeout_seconds and the plan's limit."
    )
    deadline_at: datetime | None = Field(
        None, description="The task fails if it has not started by then."
    )
    start_at: datetime | None = Field(None, description="The task does not start before.")
    estimated_cost_usd: float | None = Field(
        None, description="The expected cost of a run; null means max_cost_usd."
    )
    cancel_requested_at: datetime | None = Field(
        None, description="When a cancel of the running task was requested."
    )
    created_by: str = Field("", description="Who created it.")
    source: str = Field("", description="The source of the request.")
    workflow_id: str = Field("", description="The same as dag_id.")
    task_type: str = Field("", description="The same as type.")
    error_info: dict[str, Any] | None = Field(
        None, description="The latest failure: reason, message and number of attempts."
    )
    lease_owner: str | None = Field(None, description="The worker that holds it now.")
    lease_expires_at: datetime | None = Field(
        None, description="When that worker's lease ends unless a heartbeat renews it."
    )

    warnings: list[str] = Field(
        default_factory=list,
        description="In the response to a create: what may keep the task from running, for instance"
        " that no worker has a handler for its type.",
    )

    @property
    def is_final(self) -> bool:
        """Whether the task has ended."""
        return self.status.is_final


Task = TaskResponse


class Event(ResponseModel):
    """One change of a task's state, or the end of a graph."""

    id: int = Field(description="The event's id; a stream can be resumed after it.")
    kind: str = Field(
        description="What happened: task. and the task's new state, such as task.ready or"
        " task.completed; or dag.completed, dag.failed or dag.cancelled at the end of a graph of"
        " several tasks."
    )
    task_id: str | None = Field(
        None, description="The task's id; null if the event concerns a whole graph."
    )
    dag_id: str = Field(description="The graph.")
    from_state: str | None = Field(None, description="The state before.")
    state: str = Field(description="The new state; of a graph, its status.")
    status: TaskStatus = Field(description="The new public status.")
    epoch: int = Field(description="The number of the claim, from 1; 0 before the first.")
    reason: str | None = Field(None, description="The error class, if it failed.")
    at: datetime = Field(description="When it happened.")


class CancelResult(ResponseModel):
    """The response to a cancel."""

    cancelled: bool = Field(default=True, description="Always true: the cancel was accepted.")
    state: str = Field(description="The task's state now; a running task was requested to stop.")


class QueueBlock(ResponseModel):
    """One reason why none of your tasks can start."""

    code: str = Field(description="A code for programs, as in an explanation: paused, slots, …")
    message: str = Field(description="The reason as a sentence.")


class QueueStatus(ResponseModel):
    """The number of your running and waiting tasks, and your limits."""

    running: int = Field(description="How many tasks are claimed or running.")
    pending: int = Field(description="How many tasks are waiting.")
    max_concurrent: int = Field(description="The maximum number of running tasks.")
    can_start_more: bool = Field(description="Whether another task could start now.")
    monthly_hours_used: float = Field(description="The hours used in this billing month.")
    monthly_hours_limit: int | None = Field(
        None, description="The limit of hours; null means no limit."
    )
    held_by: list[QueueBlock] = Field(
        default_factory=list, description="The reasons why no task can start, if any."
    )


class UserLimits(ResponseModel):
    """Your limits and how much of them is used."""

    plan: PlanTier = Field(description="The user's plan.")
    max_concurrent_agents: int = Field(description="The maximum number of running tasks.")
    max_task_duration_minutes: int = Field(description="The time limit of one run.")
    monthly_agent_hours_limit: int | None = Field(
        None, description="The hours per billing month; null means no limit."
    )
    monthly_agent_hours_used: float = Field(description="The hours used in this billing month.")
    billing_cycle_resets_at: datetime | None = Field(None, description="When the hours are reset.")
    monthly_agent_hours_promised: float = Field(
        0.0, description="Hours reserved for running tasks; unused hours are returned."
    )
    on_exhausted: str = Field(
        "reject",
        description="What happens to new tasks when the hours are used up: reject or hold.",
    )
    pending: int = Field(0, description="How many tasks are waiting.")
    pending_limit: int | None = Field(None, description="The maximum number of waiting tasks.")
    night_budget_usd: float | None = Field(
        None, description="The budget of one night; null means no limit."
    )
    night_spent_usd: float = Field(0.0, description="The cost of this night so far.")
    night_left_usd: float | None = Field(
        None,
        description="What remains of the night's budget after reservations; null means no limit.",
    )
    next_night_at: datetime | None = Field(None, description="When the next night begins.")
    window: str | None = Field(None, description="When your tasks may start; null means any time.")
    artifact_max_mb: float = Field(0.0, description="The largest artifact, in MB.")
    artifact_task_mb: float = Field(
        0.0, description="The largest size of all artifacts of one task, in MB."
    )
    artifact_storage_mb: int | None = Field(
        None, description="The MB of artifacts that may be stored; null means no limit."
    )
    artifact_stored_mb: float = Field(0.0, description="The MB of artifacts that are stored.")


class ExpectedTime(ResponseModel):
    """A forecast time as percentiles; null if it is likely more than a month away."""

    p10_at: datetime | None = Field(None, description="The 10th percentile.")
    p50_at: datetime | None = Field(None, description="The median.")
    p90_at: datetime | None = Field(None, description="The 90th percentile.")


class Forecast(ResponseModel):
    """When a task is expected to start and to end, simulated with the rules of the claim."""

    id: str = Field(description="The task's id.")
    title: str = Field("", description="The title.")
    type: str = Field(description="The type of the task.")
    state: str = Field(description="The state.")
    queue_position: int | None = Field(
        None,
        description="The position among your own tasks that can start, from 1; null unless it"
        " waits.",
    )
    start: ExpectedTime = Field(description="The forecast of the start.")
    finish: ExpectedTime = Field(description="The forecast of the end.")
    observed_runs: int = Field(
        description="How many runs of this type the forecast is based on; with 0 the timeout is"
        " used as duration."
    )
    nights: int = Field(description="The number of simulated nights.")
    made_at: datetime = Field(description="When the forecast was made.")
    notes: list[str] = Field(default_factory=list, description="Why the forecast may be wrong.")


class PlanEdge(RequestModel):
    """One dependency inside a batch, by the indexes of the tasks, from 0."""

    parent: WholeNumber = Field(ge=0, description="The task that must end first.")
    child: WholeNumber = Field(ge=0, description="The task that waits for it.")


class PlanRequest(RequestModel):
    """A batch of tasks to simulate."""

    tasks: tuple[TaskBody, ...] = Field(min_length=1, max_length=1000, description="The tasks.")
    edges: tuple[PlanEdge, ...] = Field((), max_length=10_000, description="The dependencies.")
    by_at: Instant | None = Field(None, description="The time by which they should be done.")


class PlannedTask(ResponseModel):
    """One task of a batch with its forecast."""

    title: str = Field(description="The title.")
    type: str = Field(description="The type of the task.")
    start: ExpectedTime = Field(description="The forecast of the start.")
    finish: ExpectedTime = Field(description="The forecast of the end.")


class Plan(ResponseModel):
    """The forecast of a batch if it were submitted now; nothing was submitted."""

    tasks: int = Field(description="The number of tasks.")
    by_at: datetime | None = Field(None, description="The requested time.")
    sure: int | None = Field(
        None, description="How many tasks end by then with a probability of 90 %."
    )
    likely: int | None = Field(
        None, description="How many tasks end by then with a probability of 50 %."
    )
    finish: ExpectedTime = Field(description="The forecast of the end of the last task.")
    steps: list[PlannedTask] = Field(description="Each task, in the requested order.")
    nights: int = Field(description="The number of simulated nights.")
    made_at: datetime = Field(description="When the forecast was made.")
    notes: list[str] = Field(default_factory=list, description="Why the forecast may be wrong.")
