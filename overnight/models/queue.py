"""Models of the single-queue API, with the field names of its original specification."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StrictBool

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.field_types import WEEK_SECONDS, JsonObject, ShortText, Text, WholeNumber

Variable = Annotated[Text, Field(max_length=32_768)]
VariableName = Annotated[Text, Field(min_length=1, max_length=255)]


class QueueSubmit(RequestModel):
    """A prompt for an agent; only `prompt` is required."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "prompt": "Perform nightly maintenance",
                    "model": "sonnet",
                    "timeout_seconds": 1800,
                }
            ]
        }
    )

    prompt: Annotated[Text, Field(min_length=1, max_length=200_000)] = Field(
        description="The prompt."
    )
    model: ShortText | None = Field(None, description="The model to use.")
    timeout_seconds: WholeNumber | None = Field(
        None,
        ge=1,
        le=WEEK_SECONDS,
        description="The time limit in seconds; the plan's limit applies too.",
    )
    session_id: Annotated[Text, Field(min_length=1, max_length=255)] | None = Field(
        None, description="The session to continue."
    )
    project: ShortText | JsonObject | None = Field(
        None, description="The project: its name, or an object with an id, a name or a path."
    )
    env: dict[VariableName, Variable] | None = Field(
        None, max_length=100, description="Environment variables for the agent."
    )
    thinking: StrictBool | None = Field(None, description="Whether to enable the model's thinking.")
    source: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] | None = Field(
        None, description="The source: web, scheduler, cli."
    )
    source_job: ShortText | None = Field(
        None, description="The scheduler's job, if a scheduler submitted it."
    )
    agent_url: Annotated[Text, Field(max_length=2_000)] | None = Field(
        None, description="Ignored and logged: the first free agent gets the prompt."
    )


class QueueAccepted(ResponseModel):
    """The response to a submit."""

    queue_id: str = Field(description="The entry's id.")
    position: int | None = Field(
        None, description="The position among your own tasks that can start, from 1."
    )
    state: str = Field(description="pending: it waits for an agent.")


class QueuedTask(ResponseModel):
    """One entry of the queue; a value that is not known yet is null."""

    queue_id: str = Field(description="The entry's id.")
    state: str = Field(description="pending, dispatching, working, completed, failed or cancelled.")
    position: int | None = Field(None, description="The position while it is pending.")
    created_at: datetime = Field(description="When it was created.")
    prompt: str = Field(description="The prompt.")
    model: str | None = Field(None, description="The model to use.")
    timeout_seconds: int | None = Field(None, description="The time limit in seconds.")
    session_id: str | None = Field(None, description="The session to continue.")
    project: str | dict[str, Any] | None = Field(
        None, description="The project, as it was submitted."
    )
    env: dict[str, str] | None = Field(None, description="Environment variables.")
    thinking: bool | None = Field(None, description="Whether to enable the model's thinking.")
    dispatched_at: datetime | None = Field(None, description="When it was dispatched to an agent.")
    task_id: str | None = Field(None, description="The task's id, once it is dispatched.")
    agent_url: str | None = Field(
        None, description="The agent, once it is dispatched: the URL of an HTTP agent, else an id."
    )
    attempts: int = Field(description="How often it was dispatched.")
    last_error: str | None = Field(None, description="The error message of the latest failure.")
    source: str = Field(description="The source of the request.")
    source_job: str | None = Field(
        None, description="The scheduler's job, if a scheduler submitted it."
    )


class QueueFigures(ResponseModel):
    """The size of the queue."""

    depth: int = Field(description="How many tasks of all users wait.")
    max_size: int = Field(description="The limit of waiting tasks.")
    oldest_age_seconds: int = Field(description="The age of your oldest waiting task in seconds.")
    dispatched_count: int = Field(description="How many of your tasks are claimed or running.")


class QueueListing(QueueFigures):
    """The size of the queue, and your entries that have not ended."""

    tasks: list[QueuedTask] = Field(
        description="Dispatched entries first, then waiting ones in the order in which they start."
    )


class QueueCancelled(ResponseModel):
    """The response to a cancel."""

    queue_id: str = Field(description="The entry's id.")
    state: str = Field(description="cancelled, or working while the agent is requested to stop.")
    cancelled: bool = Field(default=True, description="Always true: the cancel was accepted.")


class JobStatus(ResponseModel):
    """One of your schedules, or a job of your own scheduler, and its latest run."""

    name: str = Field(description="The name of the schedule; or of the job, as in source_job.")
    last_run_at: datetime | None = Field(
        None, description="When it last submitted; for a schedule, its latest fire time."
    )
    last_status: str | None = Field(
        None,
        description="queued; or why nothing was submitted: skipped_queue_full,"
        " skipped_monthly_limit, and for schedules also skipped_overlap, skipped_paused,"
        " skipped_missed, cancelled or failed.",
    )
    last_queue_id: str | None = Field(
        None, description="The entry of the latest submit, if it was queued."
    )
    is_running: bool = Field(description="Whether that entry has not ended.")
    next_run_at: datetime | None = Field(
        None, description="The next fire time of a schedule that is not paused."
    )


class ServiceStatus(ResponseModel):
    """The version of the service and the size of its queue."""

    type: str = Field("view", description="The type of component.")
    interfaces: list[str] = Field(
        default=["statusable", "observable", "taskable"],
        description="The interfaces that it supports.",
    )
    version: str = Field(description="The version of the service.")
    queue: QueueFigures = Field(description="The size of the queue.")
    jobs: list[JobStatus] = Field(
        default_factory=list,
        description="Your schedules and the jobs of your scheduler, latest first.",
    )
