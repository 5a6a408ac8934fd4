"""Models of the requests and responses of pull agents."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.field_types import (
    LONGEST_WAIT_SECONDS,
    JsonObject,
    Number,
    ShortText,
    Text,
    WholeNumber,
)
from overnight.models.json_values import check_characters, check_json
from overnight.models.tasks import TaskBody
from overnight.models.validation import Feedback

JsonValue = Annotated[Any, AfterValidator(check_json)]
MOST_USD = 1_000_000
FINAL_STATES = frozenset({"completed", "dead_lettered", "cancelled"})
LONGEST_EXTENSION_SECONDS = 3600
#: The characters that one request may add to a log.
MAX_LOG_TEXT = 64 * 1024
Usd = Annotated[Number, Field(ge=0, le=MOST_USD)]
Count = Annotated[WholeNumber, Field(ge=0, le=2**53)]


class AgentRegister(RequestModel):
    """The registration of an agent; only the name is required."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = Field(
        description="Unique among your agents; registering the name again updates the agent."
    )
    capabilities: list[ShortText] = Field(
        default=[],
        max_length=1000,
        description="The capabilities that it offers to tasks that require them; at most 100 unless"
        " the service is set otherwise.",
    )
    types: list[ShortText] = Field(
        default=[],
        max_length=1000,
        description="The types of task that it accepts; empty means all. At most 100 unless the"
        " service is set otherwise.",
    )
    models: list[ShortText] = Field(
        default=[], max_length=100, description="The models that it can use."
    )
    slots: WholeNumber | None = Field(
        None,
        ge=1,
        le=1000,
        description="How many tasks it runs at once; the service's default if left out.",
    )
    budget_usd: Usd | None = Field(
        None,
        description="What all its runs may cost; null means no limit. Registering again keeps"
        " what is spent.",
    )
    claim_ttl_seconds: WholeNumber | None = Field(
        None, ge=1, le=300, description="The seconds within which a claimed task must be started."
    )
    lease_seconds: WholeNumber | None = Field(
        None,
        ge=1,
        le=3600,
        description="The seconds without a heartbeat after which a run, or the agent, counts as"
        " lost.",
    )
    serves: Literal["me", "everyone"] = Field(
        "me",
        description="Whose tasks it claims; everyone requires an admin key with the scope"
        " agents:all-users.",
    )


class RegisteredAgent(ResponseModel):
    """A registered agent."""

    id: str = Field(description="The agent's id: agent_ and a ULID.")
    name: str = Field(description="The agent's name, unique among your agents.")
    pool: str = Field(description="The pool that only this agent serves.")
    status: str = Field(description="active, draining, silent or offline.")
    serves: str = Field(description="Whose tasks it claims: me or everyone.")
    capabilities: list[str] = Field(description="The capabilities that it offers.")
    types: list[str] = Field(description="The types of task that it accepts; empty means all.")
    models: list[str] = Field(description="The models that it can use.")
    slots: int = Field(description="How many tasks it runs at once.")
    busy: int = Field(description="How many tasks it holds now.")
    budget_remaining_usd: float | None = Field(
        description="What its runs may still cost; null means no limit."
    )
    claim_ttl_seconds: int = Field(
        description="The seconds within which a claimed task must be started."
    )
    lease_seconds: int = Field(
        description="The seconds without a heartbeat after which it counts as lost."
    )
    joined_at: datetime = Field(description="When it last registered.")
    last_seen_at: datetime = Field(description="When its last heartbeat or request arrived.")
    url: str | None = Field(None, description="The address of an HTTP agent; null for others.")
    health: str | None = Field(
        None,
        description="What the agent driver found at the address: unknown, idle, busy, unreachable"
        " or unauthorized; null without an address.",
    )
    health_detail: str | None = Field(None, description="Why an HTTP agent is not healthy.")
    checked_at: datetime | None = Field(None, description="When the address was last checked.")


class AgentHeartbeat(ResponseModel):
    """The response to an agent's heartbeat."""

    status: str = Field(description="active, or draining if it gets no further tasks.")


class ClaimedTask(ResponseModel):
    """A claimed task, and the token that authorises its run."""

    task_id: str = Field(description="The task's id.")
    dag_id: str = Field(description="The id of the task's graph.")
    epoch: int = Field(description="The number of this claim, from 1.")
    attempt: int = Field(description="The number of the attempt, from 1.")
    max_attempts: int = Field(description="The maximum number of attempts.")
    type: str = Field(description="The type of the task, which selects the handler.")
    title: str = Field(description="The title.")
    description: str = Field(description="The description.")
    payload: dict[str, Any] = Field(description="The payload for the handler.")
    spec: dict[str, Any] = Field(description="The spec for the runner: prompt, model, env, …")
    inputs: dict[str, Any] = Field(description="The outputs that the task may read, by name.")
    base64_inputs: list[str] = Field(
        default=[], description="The names of inputs that are bytes, encoded in base 64."
    )
    feedback: Feedback | None = Field(
        None, description="Why the output of an earlier attempt was rejected; null if none was."
    )
    timeout_seconds: int = Field(
        description="The time limit of the run in seconds, from its start."
    )
    ceiling_usd: float | None = Field(
        description="The limit of the cost of all runs together; null means no limit."
    )
    spent_usd: float = Field(description="The cost of earlier runs.")
    claim_ttl_seconds: float = Field(
        description="The seconds within which the run must be started; after that the claim is"
        " lost."
    )
    lease_seconds: float = Field(
        description="The lease of the run in seconds; each heartbeat renews it."
    )
    token: str = Field(description="The token of this claim, to be sent as Authorization: Bearer.")


class RunStarted(ResponseModel):
    """The response to the start of a run."""

    lease_seconds: float = Field(
        description="The lease of the run in seconds; each heartbeat renews it."
    )
    timeout_seconds: int = Field(description="The time limit of the run in seconds.")


class RunHeartbeat(RequestModel):
    """The heartbeat of a run; both fields are totals, not changes."""

    progress: JsonObject | None = Field(None, description="The latest progress report.")
    cost_usd: Usd | None = Field(None, description="The cost of the run so far.")


class HeartbeatReply(ResponseModel):
    """The response to a run's heartbeat: `continue`, or why the run should end."""

    answer: Literal["continue", "cancel", "budget", "hand_back"] = Field(
        description="continue; or why the run must end: a cancel, a used-up budget, or the end of"
        " the time window."
    )
    lease_seconds: float = Field(
        description="The seconds within which the next heartbeat must arrive."
    )


class TokenCount(RequestModel):
    """The tokens of a run's model calls."""

    input: Count = Field(0, description="Input tokens.")
    output: Count = Field(0, description="Output tokens.")


class RunCost(RequestModel):
    """The cost of a run, part of every report of its end."""

    cost_usd: Usd = Field(0.0, description="The cost of the whole run in US dollars.")
    tokens: TokenCount = Field(default=TokenCount(), description="The tokens of the whole run.")


class TaskResult(RunCost):
    """The result of a run; the status `failed` has the same effect as a fail report."""

    status: Literal["completed", "failed"] = Field("completed", description="The outcome.")
    output: JsonValue = Field(None, description="The output: any JSON value.")
    summary: Text | None = Field(None, max_length=10_000, description="The result in one line.")
    files_changed: list[Annotated[Text, Field(max_length=4096)]] | None = Field(
        None, max_length=10_000, description="The files that the run changed."
    )
    error: Text | None = Field(
        None, max_length=10_000, description="The error message, if the run failed."
    )


class RunFailure(RunCost):
    """A failed run; without `retryable` the task's retry policy decides what follows."""

    error: Text = Field("the run failed", max_length=10_000, description="The error message.")
    error_class: ShortText = Field(
        "error",
        description="The error class, such as error, timeout, rate_limit, auth_failure or"
        " invalid_output.",
    )
    error_type: Text = Field(
        "", max_length=200, description="The class name of the exception, if there was one."
    )
    detail: Text = Field("", max_length=10_000, description="More details, such as a traceback.")
    retryable: bool | None = Field(
        default=None,
        strict=True,
        description="Whether to run the task again; null means that the retry policy decides.",
    )
    retry_after: Number | None = Field(
        None,
        ge=0,
        le=LONGEST_WAIT_SECONDS,
        description="The seconds to wait before the next run; with rate_limit or snooze no"
        " attempt is spent.",
    )


class ReleaseRequest(RunCost):
    """A run or an unstarted claim that is handed back."""

    reason: Literal["shutdown", "window_closed", "busy", "budget", "cancelled"] = Field(
        "shutdown",
        description="shutdown spends no attempt the first three times, and window_closed none if"
        " the owner's window is closed; nor does busy, which puts the task at the back of its"
        " owner's queue; budget waits for an approval; cancelled ends a run whose cancel was"
        " requested.",
    )


class LeaseExtension(RequestModel):
    """A request to extend the lease of a run once, for a long pause between two heartbeats."""

    seconds: WholeNumber = Field(
        ge=1,
        le=LONGEST_EXTENSION_SECONDS,
        description="The seconds within which the next heartbeat must arrive.",
    )


class SuspendRequest(RunCost):
    """A run that is suspended until other tasks have ended."""

    tasks: list[ShortText] = Field(
        min_length=1, max_length=10_000, description="The ids of the tasks to wait for."
    )


class SpawnRequest(RequestModel):
    """A child of the running task; the same key again returns the existing child."""

    task: TaskBody = Field(description="The fields of the child.")
    key: Annotated[Text, Field(min_length=1, max_length=100)] | None = Field(
        None,
        description="A key that is unique among the task's children; without one, each call"
        " creates a child.",
    )
    depends_on: list[ShortText] = Field(
        [], max_length=1000, description="The ids of other children that it waits for."
    )


class Child(ResponseModel):
    """A task that the running task has spawned."""

    id: str = Field(description="The task's id.")
    key: str = Field(description="Its key among the task's children.")
    title: str = Field(description="The title.")
    type: str = Field(description="The type of the task.")
    state: str = Field(description="The state.")
    output: Any = Field(None, description="The output, once it has completed.")
    failure_reason: str | None = Field(None, description="The error class of its latest failure.")
    error: str | None = Field(None, description="The error message of its latest failure.")

    @property
    def is_final(self) -> bool:
        """Whether the child has ended."""
        return self.state in FINAL_STATES

    @property
    def succeeded(self) -> bool:
        """Whether the child has completed, so that `output` is what its handler returned."""
        return self.state == "completed"


class ArtifactUpload(RequestModel):
    """An artifact to store: text, JSON as text, or bytes in base 64."""

    name: Annotated[Text, Field(min_length=1, max_length=100)] = Field(
        description="The artifact's name; the same name again replaces the content."
    )
    kind: Literal["text", "json", "bytes"] = Field("text", description="The kind of content.")
    content: Annotated[str, AfterValidator(check_characters)] = Field(
        description="The content: text, JSON as text, or bytes in base 64."
    )


class ArtifactCreated(ResponseModel):
    """The id of a stored artifact."""

    id: str = Field(description="The artifact's id: art_ and a ULID.")


class RunLogText(RequestModel):
    """Text for the log of a run: one or several whole lines."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_LOG_TEXT)] = Field(
        description="The lines; a line feed is added if the last one has none."
    )
    stream: Literal["stdout", "stderr", "log"] = Field(
        "log", description="Where the lines come from."
    )


class Ok(ResponseModel):
    """The response to an accepted report."""

    ok: bool = Field(default=True, description="Always true.")
