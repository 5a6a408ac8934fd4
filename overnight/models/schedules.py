"""Models of schedules: tasks and graphs that are submitted at fire times."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

from pydantic import ConfigDict, Field

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.field_types import (
    DAY_SECONDS,
    Instant,
    JsonObject,
    ShortText,
    Text,
    WholeNumber,
)

# The name becomes part of `created_by`, of file names and of messages: nothing needs quoting.
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
ScheduleName = Annotated[str, Field(min_length=1, max_length=90, pattern=NAME)]
When = Annotated[Text, Field(min_length=1, max_length=200)]
Overlap = Literal["skip", "queue", "cancel"]
CatchUp = Literal["none", "last", "all"]
MOST_CATCH_UP = 100
MOST_BACKFILL = 500
MOST_TIMES = 100
EXAMPLE: dict[str, Any] = {
    "name": "nightly-report",
    "when": "every weekday at 22:00",
    "zone": "Europe/Berlin",
    "task": {"title": "Report of {{ fire_date }}", "type": "echo"},
}

_NAME = "The name, unique among your schedules; its tasks are created by cron:NAME."
_WHEN = (
    'When it fires, in words ("every weekday at 22:00", "every 90 minutes", "tomorrow at 07:00"),'
    " as a cron expression of five fields, or as an instant."
)
_ZONE = "The time zone of its local times, such as Europe/Berlin."
_TASK = (
    "The task to submit, with the fields of a new task. Texts may hold {{ fire_time }} and other"
    " names; they are filled in for each fire time."
)
_GRAPH = "The graph to submit, with the fields of a new graph; in place of task."
_STARTS = "The first instant at which it may fire."
_ENDS = "The last instant at which it may fire."
_JITTER = "By how much a fire may be delayed, so that many schedules do not fire at once."
_OVERLAP = (
    "What happens at a fire time while the run before is not over: skip it, queue it until that"
    " run is over, or cancel that run."
)
_CATCH_UP = "Which fire times run late after a downtime: none, the last one, or all."
_LIMIT = "With catch_up all: how many of the missed fire times run, the latest of them."


class ScheduleCreate(RequestModel):
    """A new schedule; exactly one of task and graph is needed."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    name: ScheduleName = Field(description=_NAME)
    when: When = Field(description=_WHEN)
    zone: ShortText = Field("UTC", description=_ZONE)
    task: JsonObject | None = Field(None, description=_TASK)
    graph: JsonObject | None = Field(None, description=_GRAPH)
    starts_at: Instant | None = Field(None, description=_STARTS)
    ends_at: Instant | None = Field(None, description=_ENDS)
    jitter_seconds: WholeNumber = Field(0, ge=0, le=DAY_SECONDS, description=_JITTER)
    overlap: Overlap = Field("skip", description=_OVERLAP)
    catch_up: CatchUp = Field("last", description=_CATCH_UP)
    catch_up_limit: WholeNumber = Field(10, ge=1, le=MOST_CATCH_UP, description=_LIMIT)
    paused: bool = Field(default=False, strict=True, description="Whether it begins paused.")


class ScheduleFields(TypedDict, total=False):
    """The fields of a new schedule besides its name and its time."""

    zone: str
    task: Mapping[str, Any] | None
    graph: Mapping[str, Any] | None
    starts_at: datetime | str | None
    ends_at: datetime | str | None
    jitter_seconds: int
    overlap: Overlap
    catch_up: CatchUp
    catch_up_limit: int
    paused: bool


class ScheduleChanges(TypedDict, total=False):
    """The fields of a schedule that an edit can change."""

    name: str
    when: str
    zone: str
    task: Mapping[str, Any]
    graph: Mapping[str, Any]
    starts_at: datetime | str | None
    ends_at: datetime | str | None
    jitter_seconds: int
    overlap: Overlap
    catch_up: CatchUp
    catch_up_limit: int


class ScheduleEdit(RequestModel):
    """Changes of a schedule; fields that are left out stay as they are."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"when": "every day at 21:30"}]})

    name: ScheduleName | None = Field(None, description=_NAME)
    when: When | None = Field(None, description=_WHEN)
    zone: ShortText | None = Field(None, description=_ZONE)
    task: JsonObject | None = Field(None, description=_TASK)
    graph: JsonObject | None = Field(None, description=_GRAPH)
    starts_at: Instant | None = Field(None, description=_STARTS + " null: no such bound.")
    ends_at: Instant | None = Field(None, description=_ENDS + " null: no such bound.")
    jitter_seconds: WholeNumber | None = Field(None, ge=0, le=DAY_SECONDS, description=_JITTER)
    overlap: Overlap | None = Field(None, description=_OVERLAP)
    catch_up: CatchUp | None = Field(None, description=_CATCH_UP)
    catch_up_limit: WholeNumber | None = Field(None, ge=1, le=MOST_CATCH_UP, description=_LIMIT)


class FireTime(ResponseModel):
    """A fire time to come, as an instant and in words."""

    at: datetime = Field(description="The fire time.")
    words: str = Field(description="The fire time in the zone of the reader.")


class SchedulePreview(ResponseModel):
    """What a new schedule would be; nothing was created."""

    description: str = Field(description="When it fires, as a sentence.")
    cron: str | None = Field(None, description="The cron expression, if one says the same.")
    zone: str = Field(description="The time zone of its local times.")
    next: list[FireTime] = Field(description="The next fire times.")
    submits: dict[str, Any] | None = Field(
        None, description="What it submits at the first of them, with the templates filled in."
    )


class ScheduleFire(ResponseModel):
    """One fire time of a schedule, and what became of it."""

    fire_time: datetime = Field(description="The fire time.")
    kind: str = Field(description="scheduled, manual or backfill.")
    status: str = Field(
        description="queued, waiting, skipped_queue_full, skipped_monthly_limit, skipped_overlap,"
        " skipped_paused, skipped_missed, cancelled or failed."
    )
    reason: str | None = Field(None, description="Why it was skipped or failed.")
    task_id: str | None = Field(None, description="The task that it submitted.")
    dag_id: str | None = Field(None, description="The graph that it submitted.")
    last_queue_id: str | None = Field(None, description="The task or the graph, whichever it is.")
    is_running: bool = Field(False, description="Whether that has not ended.")  # noqa: FBT003
    decided_at: datetime | None = Field(None, description="When this status was recorded.")


class Schedule(ResponseModel):
    """A schedule, its next fire times and its latest outcome."""

    id: str = Field(description="The schedule's id.")
    name: str = Field(description="The schedule's name.")
    state: str = Field(description="active, paused, or ended: it has no further fire time.")
    when: str = Field(description="When it fires, as its user wrote it.")
    description: str = Field(description="When it fires, as a sentence.")
    kind: str = Field(description="cron, interval or once.")
    cron: str | None = Field(None, description="The cron expression of the kind cron.")
    zone: str = Field(description="The time zone of its local times.")
    task: dict[str, Any] | None = Field(None, description="The task that it submits.")
    graph: dict[str, Any] | None = Field(None, description="The graph that it submits.")
    starts_at: datetime | None = Field(None, description=_STARTS)
    ends_at: datetime | None = Field(None, description=_ENDS)
    jitter_seconds: int = Field(description=_JITTER)
    overlap: str = Field(description=_OVERLAP)
    catch_up: str = Field(description=_CATCH_UP)
    catch_up_limit: int = Field(description=_LIMIT)
    created_at: datetime = Field(description="When it was created.")
    paused_at: datetime | None = Field(None, description="When it was paused.")
    next_fire_at: datetime | None = Field(None, description="The next fire time.")
    next: list[FireTime] = Field(description="The next fire times, in words too.")
    last: ScheduleFire | None = Field(None, description="The latest fire time with an outcome.")
    waiting: int = Field(description="How many of its fire times wait for the run before.")
    error: str | None = Field(
        None, description="The unexpected error because of which its fire time is tried again."
    )
    edition: int = Field(description="Grows with each change by a person; it is the ETag.")


class ScheduleDeleted(ResponseModel):
    """A schedule that was deleted; its history stays."""

    id: str = Field(description="The schedule's id.")
    deleted: bool = Field(default=True, description="Always true.")


class BackfillRequest(RequestModel):
    """The past fire times to run: those from `since` on, before `until`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"since": "2025-01-01T00:00:00Z", "until": "2025-01-08T00:00:00Z", "preview": True}
            ]
        }
    )

    since: Instant = Field(description="The first instant of the range.")
    until: Instant = Field(description="The end of the range, which is not part of it.")
    preview: bool = Field(
        default=False, strict=True, description="Whether to only show what would be done."
    )


class Backfill(ResponseModel):
    """The fire times of a range, and which of them run."""

    total: int = Field(description="How many fire times the range has.")
    added: int = Field(description="How many of them run now, one after the other.")
    present: int = Field(description="How many have run before, or wait already.")
    preview: bool = Field(description="Whether nothing was changed.")
    fire_times: list[FireTime] = Field(description="The fire times that run.")
