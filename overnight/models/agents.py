"""What travels between an agent outside the deployment and the service, field by field."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.field_types import (
    DAY_SECONDS,
    JsonObject,
    Number,
    ShortText,
    Text,
    WholeNumber,
)
from overnight.models.json_values import check_characters, check_json
from overnight.models.tasks import TaskCreate

JsonValue = Annotated[Any, AfterValidator(check_json)]
MOST_USD = 1_000_000
LONGEST_EXTENSION_SECONDS = 3600
Usd = Annotated[Number, Field(ge=0, le=MOST_USD)]
Count = Annotated[WholeNumber, Field(ge=0, le=2**53)]


class AgentRegister(RequestModel):
    """An agent that comes, or comes back; only the name is needed."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = Field(
        description="Unique among your agents; the same name again is the same agent, changed."
    )
    capabilities: list[ShortText] = Field(
        default=[], max_length=100, description="What it can do; a task may require some of it."
    )
    types: list[ShortText] = Field(
        default=[],
        max_length=100,
        description="The only types it takes; none named, every type its capabilities cover.",
    )
    models: list[ShortText] = Field(default=[], max_length=100, description="Models it can use.")
    slots: WholeNumber | None = Field(
        None, ge=1, le=1000, description="Tasks it holds at once; left out, the service's default."
    )
    budget_usd: Usd | None = Field(
        None,
        description="What its runs may cost in all; null is no limit. Kept when it comes back.",
    )
    claim_ttl_seconds: WholeNumber | None = Field(
        None, ge=1, le=300, description="How long a claim waits for its start."
    )
    lease_seconds: WholeNumber | None = Field(
        None, ge=1, le=3600, description="Silence after which a run, or the agent, counts as lost."
    )
    serves: Literal["me", "everyone"] = Field(
        "me", description="Whose tasks it claims; everyone needs an admin with agents:all-users."
    )


class Agent(ResponseModel):
    """An agent as it stands; `status` is active, draining, silent or offline."""

    id: str = Field(description="Its id, agent_ and a ULID.")
    name: str = Field(description="Its name among your agents.")
    pool: str = Field(description="The pool it alone serves.")
    status: str = Field(description="active, draining, silent or offline.")
    serves: str = Field(description="Whose tasks it claims: me or everyone.")
    capabilities: list[str] = Field(description="What it can do.")
    types: list[str] = Field(description="The only types it takes; none is all.")
    models: list[str] = Field(description="Models it can use.")
    slots: int = Field(description="Tasks it holds at once.")
    busy: int = Field(description="Tasks it holds now.")
    budget_remaining_usd: float | None = Field(
        description="What its runs may still cost; null is no limit."
    )
    claim_ttl_seconds: int = Field(description="How long a claim waits for its start.")
    lease_seconds: int = Field(description="Silence after which it counts as lost.")
    joined_at: datetime = Field(description="When it last registered.")
    last_seen_at: datetime = Field(description="When it was last heard of.")


class AgentHeartbeat(ResponseModel):
    """The answer to an agent's sign of life."""

    status: str = Field(description="active, or draining: it is given nothing new.")


class ClaimedTask(ResponseModel):
    """A claimed task, and the token that whoever runs it must show."""

    task_id: str = Field(description="The task.")
    dag_id: str = Field(description="Its graph.")
    epoch: int = Field(description="Which claim of the task this is, from 1.")
    attempt: int = Field(description="Which attempt it would spend, from 1.")
    max_attempts: int = Field(description="How many there may be.")
    type: str = Field(description="Which handler should run it.")
    title: str = Field(description="What people read.")
    description: str = Field(description="More about it.")
    payload: dict[str, Any] = Field(description="What to work on.")
    spec: dict[str, Any] = Field(description="How to work: prompt, model, env, …")
    inputs: dict[str, Any] = Field(description="Outputs of the tasks it waited for, by name.")
    base64_inputs: list[str] = Field(
        default=[], description="Names of the inputs that are bytes, and stand there in base 64."
    )
    timeout_seconds: int = Field(description="How long the run may take, from its start.")
    ceiling_usd: float | None = Field(description="What all runs of the task may cost together.")
    spent_usd: float = Field(description="What earlier runs have cost.")
    claim_ttl_seconds: float = Field(description="Start it within this, or it goes to others.")
    lease_seconds: float = Field(description="Beat well within this once it has started.")
    token: str = Field(description="For this claim alone; show it as Authorization: Bearer.")


class RunStarted(ResponseModel):
    """A run that has begun."""

    lease_seconds: float = Field(description="Beat well within this.")
    timeout_seconds: int = Field(description="How long the run may take.")


class RunHeartbeat(RequestModel):
    """A run's sign of life; both fields tell all so far, not what is new."""

    progress: JsonObject | None = Field(None, description="How far it is, for watchers.")
    cost_usd: Usd | None = Field(None, description="What the run has cost until now.")


class HeartbeatReply(ResponseModel):
    """What a run hears: `continue`, or why it should end."""

    answer: Literal["continue", "cancel", "budget", "hand_back"] = Field(
        description="Go on; or end, because of a cancel, a used-up budget, or a worker that stops."
    )
    lease_seconds: float = Field(description="How long it may be silent from now on.")


class TokenCount(RequestModel):
    """Tokens of model calls."""

    input: Count = Field(0, description="Tokens that models read.")
    output: Count = Field(0, description="Tokens that models wrote.")


class RunCost(RequestModel):
    """What every end of a run may say about money."""

    cost_usd: Usd = Field(0.0, description="What the whole run has cost.")
    tokens: TokenCount = Field(default=TokenCount(), description="Tokens of the whole run.")


class TaskResult(RunCost):
    """How a run ended, in the words of the user limits' design; `failed` is the same as a fail."""

    status: Literal["completed", "failed"] = Field("completed", description="How it ended.")
    output: JsonValue = Field(None, description="What it made: any JSON value.")
    summary: Text | None = Field(
        None, max_length=10_000, description="The result in one line, for people."
    )
    files_changed: list[Annotated[Text, Field(max_length=4096)]] | None = Field(
        None, max_length=10_000, description="Files that it changed."
    )
    error: Text | None = Field(
        None, max_length=10_000, description="What went wrong, if it failed."
    )


class RunFailure(RunCost):
    """A run that failed; what follows the task's policy decides, unless it is said here."""

    error: Text = Field(
        "the run failed", max_length=10_000, description="What went wrong, for people."
    )
    error_class: ShortText = Field(
        "error", description="Such as error, timeout, rate_limit, auth_failure, invalid_output."
    )
    error_type: Text = Field(
        "", max_length=200, description="The name of the exception, if it was one."
    )
    detail: Text = Field("", max_length=10_000, description="More about it, such as a traceback.")
    retryable: bool | None = Field(
        default=None,
        strict=True,
        description="Whether another run may help; null leaves it to the task's policy.",
    )
    retry_after: Number | None = Field(
        None,
        ge=0,
        le=7 * DAY_SECONDS,
        description="Seconds; with rate_limit or snooze, no attempt is spent.",
    )


class ReleaseRequest(RunCost):
    """A run, or a claim that has not begun, that is given back."""

    reason: Literal["shutdown", "window_closed", "budget", "cancelled"] = Field(
        "shutdown",
        description="shutdown and window_closed spend nothing; budget asks a person for more;"
        " cancelled is what ends a run that was told to cancel.",
    )


class LeaseExtension(RequestModel):
    """More time until the next sign of life."""

    seconds: WholeNumber = Field(
        ge=1, le=LONGEST_EXTENSION_SECONDS, description="How long it may be silent from now on."
    )


class SuspendRequest(RunCost):
    """A run that ends until other tasks have ended."""

    tasks: list[ShortText] = Field(
        min_length=1, max_length=10_000, description="The ids of the tasks that it waits for."
    )


class SpawnRequest(RequestModel):
    """A child for the running task's graph; the same key again answers with the first one."""

    task: TaskCreate = Field(description="The child.")
    key: Annotated[Text, Field(min_length=1, max_length=100)] | None = Field(
        None, description="Its name among the task's children; left out, each call makes one more."
    )
    depends_on: list[ShortText] = Field(
        [], max_length=1000, description="The ids of other children that it waits for."
    )


class Child(ResponseModel):
    """A task that the running one has spawned, as it stands."""

    id: str = Field(description="Its id.")
    key: str = Field(description="Its name among the task's children.")
    title: str = Field(description="What people read.")
    type: str = Field(description="Which handler runs it.")
    state: str = Field(description="Where it stands.")
    output: Any = Field(None, description="What it made, once it has completed.")
    failure_reason: str | None = Field(None, description="The class of its latest failure.")
    error: str | None = Field(None, description="The message of its latest failure.")


class ArtifactUpload(RequestModel):
    """Something to keep besides the output: text, JSON written as text, or bytes in base 64."""

    name: Annotated[Text, Field(min_length=1, max_length=100)] = Field(
        description="What the task calls it; the same name again replaces it."
    )
    kind: Literal["text", "json", "bytes"] = Field("text", description="What the content is.")
    content: Annotated[str, AfterValidator(check_characters)] = Field(
        description="The content: text, JSON as text, or bytes in base 64."
    )


class ArtifactCreated(ResponseModel):
    """An artifact's id, by which others refer to it."""

    id: str = Field(description="Its id, art_ and a ULID.")


class Ok(ResponseModel):
    """That a report was taken."""

    ok: bool = Field(default=True, description="It was.")
