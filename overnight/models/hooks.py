"""Models of webhooks that come in: their sources, filters and deliveries."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypedDict

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.field_types import JsonObject, ShortText, WholeNumber
from overnight.models.json_values import check_json, check_text

Scheme = Literal["standard", "github", "slack", "stripe", "token"]
Preset = Literal["github", "generic"]
Outcome = Literal["accepted", "ignored", "failed"]
HookName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
HeaderName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$"), AfterValidator(str.lower)
]
Secret = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(check_text)]
DAY_SECONDS = 24 * 3600
MAX_OVERLAP_SECONDS = 30 * DAY_SECONDS
COMPARISONS = ("equals", "one_of", "none_of", "starts_with", "exists")


# The pattern precedes the validator: pydantic omits a later pattern from the JSON schema.
Pointer = Annotated[
    str, Field(max_length=500, pattern=r"^(/([^~]|~[01])*)?$"), AfterValidator(check_text)
]


# Headers are not signed, so that they may name no delivery.
IdPointer = Annotated[
    str, Field(max_length=500, pattern=r"^/body/([^~]|~[01])*$"), AfterValidator(check_text)
]


def _one_comparison(schema: dict[str, Any]) -> None:
    """Say in the JSON schema that a condition has exactly one comparison."""
    schema["oneOf"] = [{"required": [name]} for name in COMPARISONS]


class HookCondition(RequestModel):
    """What an event must have at a JSON pointer; exactly one comparison is set."""

    model_config = ConfigDict(json_schema_extra=_one_comparison)

    pointer: Pointer = Field(
        description="A JSON pointer into the event, such as /body/action or /headers/x-github-event"
    )
    equals: Any = Field(None, description="The value is this one.")
    one_of: tuple[Any, ...] = Field((), max_length=100, description="The value is one of these.")
    none_of: tuple[Any, ...] = Field(
        (), max_length=100, description="The value is none of these, or there is none."
    )
    starts_with: ShortText = Field("", description="The value is text that begins so.")
    exists: bool = Field(default=True, strict=True, description="Whether there is a value.")

    @model_validator(mode="after")
    def _has_one_comparison(self) -> Self:
        given = [name for name in COMPARISONS if name in self.model_fields_set]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of {', '.join(COMPARISONS)}")
        check_json([self.equals, *self.one_of, *self.none_of])
        return self


Filter = Annotated[tuple[HookCondition, ...], Field(max_length=20)]
PerMinute = Annotated[WholeNumber, Field(ge=1, le=6_000)]


class HookCreate(RequestModel):
    """A new source of webhooks; a preset says what is left out."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "reviews", "preset": "github"},
                {
                    "name": "alerts",
                    "scheme": "token",
                    "filter": [{"pointer": "/body/status", "equals": "firing"}],
                    "task": {"title": "Look into {{ /body/alert }}"},
                },
            ]
        }
    )

    name: HookName = Field(description="The name, for people and commands.")
    preset: Preset | None = Field(
        None,
        description="github: a pull request that is opened becomes a review. generic: every event"
        " becomes a task with the event as its payload.",
    )
    scheme: Scheme | None = Field(
        None, description="How the sender proves who it is; that of the preset, or standard."
    )
    secret: Secret | None = Field(
        None, description="The secret that the sender uses; a new one if left out."
    )
    header: HeaderName | None = Field(
        None, description="The header with the signature or token, for the schemes stripe, token."
    )
    id_pointer: IdPointer | None = Field(
        None,
        description="A JSON pointer to the id of a delivery, such as /body/id. Without it, events"
        " of Slack and Stripe have theirs; else the same body is the same delivery.",
    )
    filter: Filter | None = Field(
        None, description="Conditions that an event must all meet; others are ignored."
    )
    task: JsonObject | None = Field(
        None,
        description="The task that an event becomes: fields of a task, whose texts may have"
        " {{ JSON pointers }} into the event. With a preset, changes of its task.",
    )
    graph: JsonObject | None = Field(
        None, description="The graph that an event becomes, instead of a task."
    )
    per_minute: PerMinute = Field(60, description="How many deliveries are taken in a minute.")


class HookFields(TypedDict, total=False):
    """The fields of HookCreate but the name, for type checkers."""

    preset: str
    scheme: str
    secret: str
    header: str
    id_pointer: str
    filter: Sequence[Mapping[str, Any]]
    task: Mapping[str, Any]
    graph: Mapping[str, Any]
    per_minute: int


class HookChanges(RequestModel):
    """Changes of a source of webhooks; a field that is left out is not changed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"paused": True}]})

    name: HookName | None = Field(None, description="The name.")
    header: HeaderName | None = Field(
        None, description="The header with the signature or token; null means the usual one."
    )
    id_pointer: IdPointer | None = Field(
        None, description="A JSON pointer to the id of a delivery; null means the usual place."
    )
    filter: Filter | None = Field(None, description="The new conditions, instead of all others.")
    task: JsonObject | None = Field(None, description="The new task, instead of task or graph.")
    graph: JsonObject | None = Field(None, description="The new graph, instead of task or graph.")
    per_minute: PerMinute | None = Field(None, description="Deliveries taken in a minute.")
    paused: bool | None = Field(
        None, strict=True, description="Whether it answers as if it did not exist."
    )


class HookChangeFields(TypedDict, total=False):
    """The fields of HookChanges for type checkers."""

    name: str
    header: str | None
    id_pointer: str | None
    filter: Sequence[Mapping[str, Any]]
    task: Mapping[str, Any]
    graph: Mapping[str, Any]
    per_minute: int
    paused: bool


class Hook(ResponseModel):
    """A source of webhooks."""

    id: str = Field(description="The id.")
    name: str = Field(description="The name.")
    path: str = Field(description="The path of its address: the sender posts its events there.")
    scheme: str = Field(description="How the sender proves who it is.")
    header: str | None = Field(None, description="The header with the proof, if not the usual one.")
    id_pointer: str | None = Field(
        None, description="Where an event has the id of its delivery, if not in the usual place."
    )
    filter: list[dict[str, Any]] = Field(description="Conditions that an event must all meet.")
    task: dict[str, Any] | None = Field(None, description="The task that an event becomes.")
    graph: dict[str, Any] | None = Field(None, description="The graph that an event becomes.")
    per_minute: int = Field(description="How many deliveries are taken in a minute.")
    created_at: datetime = Field(description="When it was added.")
    paused_at: datetime | None = Field(None, description="When it was paused, if it is.")
    old_secret_until: datetime | None = Field(
        None, description="Until when the secret before is accepted too."
    )
    last_received_at: datetime | None = Field(None, description="When it got its last delivery.")
    last_refused_at: datetime | None = Field(
        None, description="When a request was refused that was not proven to be the sender's."
    )
    last_refusal: str | None = Field(None, description="Why that request was refused.")


class HookCreated(Hook):
    """A new source of webhooks, with its secret."""

    secret: str = Field(description="The secret; it is not shown again.")


class HookRotate(RequestModel):
    """The replacement of a secret."""

    secret: Secret | None = Field(None, description="The new secret; a random one if left out.")
    overlap_seconds: WholeNumber = Field(
        DAY_SECONDS,
        ge=0,
        le=MAX_OVERLAP_SECONDS,
        description="How long the old secret is accepted too.",
    )


class HookRemoved(ResponseModel):
    """The answer to the removal of a source of webhooks."""

    id: str = Field(description="The id.")
    removed: bool = Field(default=True, description="Always true.")


class HookDelivery(ResponseModel):
    """A request of a sender, and what became of it."""

    id: int = Field(description="The number of the delivery.")
    hook_id: str = Field(description="The source.")
    delivery_key: str | None = Field(
        None, description="What a repetition of the request is recognized by."
    )
    received_at: datetime = Field(description="When it was received.")
    bytes: int = Field(description="The size of its body.")
    outcome: Outcome = Field(
        description="accepted: tasks were made; ignored: the filter left it out; failed: no task"
        " could be made."
    )
    reason: str | None = Field(None, description="Why it failed.")
    dag_id: str | None = Field(None, description="The graph that it became.")
    task_ids: list[str] = Field(description="The tasks that it became.")
    replay_of: int | None = Field(None, description="The delivery that it repeats by hand.")
    headers: dict[str, str] = Field(description="Its headers, without those that prove the sender.")
    body: str | None = Field(None, description="Its body; null in lists.")


class HookReceived(ResponseModel):
    """The answer to a webhook."""

    delivery_id: int = Field(description="The number of the delivery.")
    outcome: Outcome = Field(description="What became of it.")
    task_ids: list[str] = Field(description="The tasks that it became.")
    dag_id: str | None = Field(None, description="The graph that it became.")
    repeated: bool = Field(default=False, description="Whether it had been received before.")
