"""Notifications: channels that reach a user, and the log of what was sent."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from overnight.models.account import TimeOfDay
from overnight.models.base import RequestModel, ResponseModel
from overnight.models.field_types import DAY_SECONDS, ShortText, Text, WholeNumber

MAX_GRACE_SECONDS = 30 * DAY_SECONDS
MAX_ADDRESS = 2000
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"


class Told(StrEnum):
    """A kind of events that a channel can be subscribed to."""

    DEAD_LETTERED = "task.dead_lettered"
    POISONED = "task.poisoned"
    ESCALATED = "task.escalated"
    DAG_FINISHED = "dag.finished"
    NEEDS_BUDGET = "needs_you.budget"
    USAGE_50 = "usage.50"
    USAGE_80 = "usage.80"
    USAGE_100 = "usage.100"
    SCHEDULE_SKIPPED = "schedule.skipped"
    SCHEDULE_FAILED = "schedule.failed"
    WORKER_LOST = "worker.lost"
    MORNING_REPORT = "report.morning"


#: What a new channel is subscribed to unless it says otherwise.
USUAL_KINDS = (
    *(Told.DEAD_LETTERED, Told.DAG_FINISHED, Told.NEEDS_BUDGET),
    *(Told.USAGE_80, Told.USAGE_100, Told.SCHEDULE_FAILED),
)


def _in_order(kinds: list[Told]) -> list[Told]:
    return sorted(set(kinds), key=list(Told).index)


Kinds = Annotated[list[Told], Field(max_length=50), AfterValidator(_in_order)]
ChannelName = Annotated[str, Field(pattern=NAME_PATTERN)]
Address = Annotated[Text, Field(min_length=1, max_length=MAX_ADDRESS)]
DigestAfter = Annotated[WholeNumber, Field(ge=0, le=1000)]
DigestMinutes = Annotated[WholeNumber, Field(ge=1, le=1440)]
_NAME = "A name for the channel: letters, digits and _.-"
_ADDRESS = (
    "Where messages go: a URL for webhook and slack, a mail address for email, the URL of an"
    " Apprise service for service."
)
_DIGEST_AFTER = (
    "How many messages about one kind of events are sent within the minutes of the digest, before"
    " the further events become one message; 0 means no digest."
)
_DIGEST_MINUTES = "The minutes of the digest."


class QuietHours(RequestModel):
    """Hours of each day in which nothing is sent; what happens in them is sent afterwards."""

    zone: ShortText = Field(description="The time zone, such as Europe/Berlin.")
    begins: TimeOfDay = Field(description="The local time at which they begin, as HH:MM.")
    ends: TimeOfDay = Field(description="The local time at which they end, as HH:MM.")


class ChannelCreate(RequestModel):
    """A channel to add."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "ops",
                    "kind": "webhook",
                    "address": "https://hooks.example.com/overnight",
                    "kinds": ["task.dead_lettered", "usage.100"],
                }
            ]
        }
    )

    name: ChannelName = Field(description=_NAME)
    kind: Literal["webhook", "slack", "email", "service"] = Field(
        description="How messages are sent."
    )
    address: Address = Field(description=_ADDRESS)
    kinds: Kinds = Field(
        default=list(USUAL_KINDS), description="The kinds of events that it is told about."
    )
    quiet: QuietHours | None = Field(None, description="When nothing is sent.")
    digest_after: DigestAfter | None = Field(
        None, description=f"{_DIGEST_AFTER} Default: 0 for a webhook, 10 otherwise."
    )
    digest_minutes: DigestMinutes = Field(10, description=_DIGEST_MINUTES)


class ChannelChange(RequestModel):
    """What to change of a channel; what is left out stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"kinds": ["usage.100"]}]})

    address: Address | None = Field(None, description=_ADDRESS)
    kinds: Kinds | None = Field(None, description="The kinds of events that it is told about.")
    quiet: QuietHours | None = Field(None, description="When nothing is sent; null means never.")
    digest_after: DigestAfter | None = Field(None, description=_DIGEST_AFTER)
    digest_minutes: DigestMinutes | None = Field(None, description=_DIGEST_MINUTES)
    enabled: bool | None = Field(
        None,
        description="false: it is told nothing, and what it has not got is given up. true: it is"
        " told again, at once even after failures.",
    )


class Channel(ResponseModel):
    """A channel, without its secrets."""

    name: str = Field(description="Its name.")
    kind: str = Field(description="How messages are sent.")
    address: str = Field(description="Where messages go, without the parts that may be secret.")
    kinds: list[str] = Field(description="The kinds of events that it is told about.")
    quiet: QuietHours | None = Field(None, description="When nothing is sent.")
    digest_after: int = Field(description=_DIGEST_AFTER)
    digest_minutes: int = Field(description=_DIGEST_MINUTES)
    state: str = Field(
        description="active; failing (the last message failed); or disabled, by you or because the"
        " receiver said that it wants no messages."
    )
    failures: int = Field(description="How many messages in a row have failed.")
    blocked_until: datetime | None = Field(None, description="Until when it is left alone.")
    open: int = Field(description="How many deliveries wait, up to 1000.")
    dead: int = Field(description="How many deliveries were given up, up to 1000.")
    created_at: datetime = Field(description="When it was added.")
    old_secret_until: datetime | None = Field(
        None, description="Until when messages are signed with the replaced secret too."
    )


class AddedChannel(Channel):
    """A new channel, with the secret of a webhook, which is not shown again."""

    secret: str | None = Field(None, description="What signs messages; only for a webhook.")


class ChannelRemoved(ResponseModel):
    """The result of removing a channel."""

    name: str = Field(description="Its name.")
    removed: bool = Field(description="Always true.")


class SecretRotation(RequestModel):
    """How the secret of a webhook is replaced."""

    grace_seconds: WholeNumber = Field(
        default=DAY_SECONDS,
        ge=0,
        le=MAX_GRACE_SECONDS,
        description="For how many seconds messages are signed with the old secret too.",
    )


class NewSecret(ResponseModel):
    """The new secret of a webhook; it is not shown again."""

    name: str = Field(description="The name of the channel.")
    secret: str = Field(description="What signs messages from now on.")
    old_secret_until: datetime = Field(
        description="Until when messages are signed with the replaced secret too."
    )


class ReportTimeSet(RequestModel):
    """When the morning report is sent to the channels that are subscribed to it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"zone": "Europe/Berlin", "at": "07:00"}]}
    )

    zone: ShortText = Field(description="The time zone, such as Europe/Berlin.")
    at: TimeOfDay = Field(description="The local time, as HH:MM.")


class ReportTime(ResponseModel):
    """When the morning report is sent to the channels that are subscribed to it."""

    zone: str | None = Field(None, description="The time zone; null if no report is sent.")
    at: str | None = Field(None, description="The local time, as HH:MM.")
    next_at: datetime | None = Field(None, description="When the next one is due.")


class Delivery(ResponseModel):
    """One event for one channel, and what became of it."""

    id: int = Field(description="Its number.")
    channel: str = Field(description="The name of the channel.")
    kind: str = Field(description="The kind of the event.")
    subject: str = Field(description="The event among those of its kind.")
    title: str | None = Field(None, description="What the event is about.")
    task_id: str | None = Field(None, description="The task that the event concerns.")
    dag_id: str | None = Field(None, description="The graph that the event concerns.")
    state: str = Field(description="pending, sending, delivered or dead.")
    attempts: int = Field(description="How often it was sent.")
    created_at: datetime = Field(description="When the event happened.")
    due_at: datetime | None = Field(None, description="When it is sent next.")
    ended_at: datetime | None = Field(None, description="When it was delivered or given up.")
    response_status: int | None = Field(None, description="The status of the last answer.")
    error: str | None = Field(None, description="Why the last try failed.")
    message: str | None = Field(
        None, description="The id of the message; deliveries of one digest share it."
    )


class DeliveriesReplayed(ResponseModel):
    """The result of replaying the dead deliveries of a channel."""

    replayed: int = Field(description="How many deliveries are sent again.")
