"""What travels between an agent outside the house and the service, field by field."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from overnight.jsonvalue import sound_value
from overnight.models import DAY_SECONDS, JsonObject, Number, TaskCreate, Text, Whole, Word

Sound = Annotated[Any, AfterValidator(sound_value)]
MOST_USD = 1_000_000
LONGEST_EXTENSION_SECONDS = 3600
Usd = Annotated[Number, Field(ge=0, le=MOST_USD)]
Count = Annotated[Whole, Field(ge=0, le=2**53)]


class Said(BaseModel):
    """Common ground of what agents say: a field that is not known is refused, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AgentRegister(Said):
    """An agent that comes, or comes back; only the name is needed."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = Field(
        description="Unique among your agents; the same name again is the same agent, changed."
    )
    capabilities: list[Word] = Field(
        default=[], max_length=100, description="What it can do; a task may require some of it."
    )
    types: list[Word] = Field(
        default=[],
        max_length=100,
        description="The only types it takes; none named, every type its capabilities cover.",
    )
    models: list[Word] = Field(default=[], max_length=100, description="Models it can use.")
    slots: Whole | None = Field(
        None, ge=1, le=1000, description="Tasks it holds at once; left out, the service's default."
    )
    budget_usd: Usd | None = Field(
        None,
        description="What its runs may cost in all; null is no limit. Kept when it comes back.",
    )
    claim_ttl_seconds: Whole | None = Field(
        None, ge=1, le=300, description="How long a claim waits for its start."
    )
    lease_seconds: Whole | None = Field(
        None, ge=1, le=3600, description="Silence after which a run, or the agent, counts as lost."
    )
    serves: Literal["me", "everyone"] = Field(
        "me", description="Whose tasks it claims; everyone needs an admin with agents:house."
    )


class Agent(BaseModel):
    """An agent as it stands; `status` is active, draining, silent or offline."""

    model_config = ConfigDict(from_attributes=True, extra="ignore")

    id: str
    name: str
    pool: str
    status: str
    serves: str
    capabilities: list[str]
    types: list[str]
    models: list[str]
    slots: int
    busy: int
    budget_remaining_usd: float | None
    claim_ttl_seconds: int
    lease_seconds: int
    joined_at: datetime
    last_seen_at: datetime


class AgentBeat(BaseModel):
    """The answer to an agent's sign of life."""

    status: str


class Work(BaseModel):
    """A claimed task, and the token that whoever runs it must show."""

    model_config = ConfigDict(extra="ignore")

    task_id: str
    dag_id: str
    epoch: int
    attempt: int
    max_attempts: int
    type: str
    title: str
    description: str
    payload: dict[str, Any]
    spec: dict[str, Any]
    inputs: dict[str, Any]
    timeout_seconds: int = Field(description="How long the run may take, from its start.")
    ceiling_usd: float | None = Field(description="What all runs of the task may cost together.")
    spent_usd: float = Field(description="What earlier runs have cost.")
    claim_ttl_seconds: float = Field(description="Start it within this, or it goes to others.")
    lease_seconds: float = Field(description="Beat well within this once it has started.")
    token: str = Field(description="For this claim alone; show it as Authorization: Bearer.")


class Started(BaseModel):
    """A run that has begun."""

    lease_seconds: float
    timeout_seconds: int


class Beat(Said):
    """A run's sign of life; both fields tell all so far, not what is new."""

    progress: JsonObject | None = Field(None, description="How far it is, for watchers.")
    cost_usd: Usd | None = Field(None, description="What the run has cost until now.")


class BeatAnswer(BaseModel):
    """What a run hears: `continue`, or why it should end."""

    answer: Literal["continue", "cancel", "budget", "hand_back"]
    lease_seconds: float


class Tokens(Said):
    """Tokens of model calls."""

    input: Count = 0
    output: Count = 0


class Spent(Said):
    """What every end of a run may say about money."""

    cost_usd: Usd = Field(0.0, description="What the whole run has cost.")
    tokens: Tokens = Field(default=Tokens(), description="Tokens of the whole run.")


class TaskResult(Spent):
    """How a run ended, in the words of the user limits' design; `failed` is the same as a fail."""

    status: Literal["completed", "failed"] = "completed"
    output: Sound = None
    summary: Text | None = Field(None, max_length=10_000)
    files_changed: list[Annotated[Text, Field(max_length=4096)]] | None = Field(
        None, max_length=10_000
    )
    error: Text | None = Field(None, max_length=10_000)


class Failure(Spent):
    """A run that failed; what follows the task's policy decides, unless it is said here."""

    error: Text = Field("the run failed", max_length=10_000)
    error_class: Word = Field(
        "error", description="Such as error, timeout, rate_limit, auth_failure, invalid_output."
    )
    error_type: Text = Field("", max_length=200)
    detail: Text = Field("", max_length=10_000)
    retryable: bool | None = Field(default=None, strict=True)
    retry_after: Number | None = Field(
        None,
        ge=0,
        le=7 * DAY_SECONDS,
        description="Seconds; with rate_limit or snooze, no attempt is spent.",
    )


class Release(Spent):
    """A run, or a claim that has not begun, that is given back."""

    reason: Literal["shutdown", "window_closed", "budget", "cancelled"] = Field(
        "shutdown",
        description="shutdown and window_closed spend nothing; budget asks a person for more;"
        " cancelled is what ends a run that was told to cancel.",
    )


class Extension(Said):
    """More time until the next sign of life."""

    seconds: Whole = Field(ge=1, le=LONGEST_EXTENSION_SECONDS)


class Awaited(Spent):
    """A run that ends until other tasks have ended."""

    tasks: list[Word] = Field(min_length=1, max_length=10_000)


class Spawn(Said):
    """A child for the running task's graph; the same key again answers with the first one."""

    task: TaskCreate
    key: Annotated[Text, Field(min_length=1, max_length=100)] | None = None
    depends_on: list[Word] = Field([], max_length=1000)


class Child(BaseModel):
    """A task that the running one has spawned, as it stands."""

    id: str
    key: str
    title: str
    type: str
    state: str
    output: Any = None
    failure_reason: str | None = None
    error: str | None = None


class ArtifactKeep(Said):
    """Something to keep besides the output: text, JSON written as text, or bytes in base 64."""

    name: Annotated[Text, Field(min_length=1, max_length=100)]
    kind: Literal["text", "json", "bytes"] = "text"
    content: str


class ArtifactKept(BaseModel):
    """An artifact's id, by which others refer to it."""

    id: str


class Ok(BaseModel):
    """That a report was taken, and where the task stands now."""

    ok: bool = True
