"""What travels over the single queue's own routes, in the words of its design."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StrictBool

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.field_types import WEEK_SECONDS, JsonObject, ShortText, Text, WholeNumber

Variable = Annotated[Text, Field(max_length=32_768)]
VariableName = Annotated[Text, Field(min_length=1, max_length=255)]


class QueueSubmit(RequestModel):
    """Work for an agent; only the prompt is needed."""

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
        description="What the agent is asked to do."
    )
    model: ShortText | None = Field(None, description="The model the agent should use.")
    timeout_seconds: WholeNumber | None = Field(
        None, ge=1, le=WEEK_SECONDS, description="How long it may take; the plan's limit applies."
    )
    session_id: Annotated[Text, Field(min_length=1, max_length=255)] | None = Field(
        None, description="The session it goes on with."
    )
    project: ShortText | JsonObject | None = Field(
        None, description="The project: its name, or an object with an id, a name or a path."
    )
    env: dict[VariableName, Variable] | None = Field(
        None, max_length=100, description="Variables for the agent's environment."
    )
    thinking: StrictBool | None = Field(None, description="Whether the agent should think first.")
    source: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] | None = Field(
        None, description="Through which door it came: web, scheduler, cli."
    )
    source_job: ShortText | None = Field(None, description="The scheduler's job, if it is one's.")
    agent_url: Annotated[Text, Field(max_length=2_000)] | None = Field(
        None, description="Not heeded, and logged: whichever agent is free first is given the work."
    )


class QueueAccepted(ResponseModel):
    """The answer to a submit."""

    queue_id: str = Field(description="The entry's name, by which it is read and cancelled.")
    position: int | None = Field(
        None, description="Its place among your own startable tasks, from 1."
    )
    state: str = Field(description="pending: it waits for an agent.")


class QueuedTask(ResponseModel):
    """One entry of the queue; what is not known yet is null."""

    queue_id: str = Field(description="The entry's name.")
    state: str = Field(description="pending, dispatching, working, completed, failed or cancelled.")
    position: int | None = Field(None, description="Its place while it is pending.")
    created_at: datetime = Field(description="When it was accepted.")
    prompt: str = Field(description="What the agent is asked to do.")
    model: str | None = Field(None, description="The model it should use.")
    timeout_seconds: int | None = Field(None, description="How long it may take.")
    session_id: str | None = Field(None, description="The session it goes on with.")
    project: str | dict[str, Any] | None = Field(None, description="The project, as it was given.")
    env: dict[str, str] | None = Field(None, description="Variables of its environment.")
    thinking: bool | None = Field(None, description="Whether the agent should think first.")
    dispatched_at: datetime | None = Field(None, description="When an agent was given it.")
    task_id: str | None = Field(None, description="The task's name, once it is dispatched.")
    agent_url: str | None = Field(None, description="Who has it, once it is dispatched.")
    attempts: int = Field(description="How often it was dispatched.")
    last_error: str | None = Field(None, description="The message of the latest failure.")
    source: str = Field(description="Through which door it came.")
    source_job: str | None = Field(None, description="The scheduler's job, if it is one's.")


class QueueFigures(ResponseModel):
    """How full the queue is."""

    depth: int = Field(description="How much work waits in the whole deployment.")
    max_size: int = Field(description="How much may.")
    oldest_age_seconds: int = Field(description="For how long your oldest waiting task has.")
    dispatched_count: int = Field(description="How many of yours an agent has.")


class QueueListing(QueueFigures):
    """The queue: how full it is, and your entries that have not ended."""

    tasks: list[QueuedTask] = Field(
        description="What agents have, then what waits, the next to start first."
    )


class QueueCancelled(ResponseModel):
    """The answer to a cancel."""

    queue_id: str = Field(description="The entry's name.")
    state: str = Field(description="cancelled, or working while the agent is asked to stop.")
    cancelled: bool = Field(default=True, description="The cancel was accepted.")


class JobStatus(ResponseModel):
    """A job of your scheduler, and what became of it the last time."""

    name: str = Field(description="Its name, as it came in source_job.")
    last_run_at: datetime = Field(description="When it last submitted something.")
    last_status: str = Field(
        description="queued; or skipped_queue_full or skipped_monthly_limit if it was refused."
    )
    last_queue_id: str | None = Field(None, description="The entry it made, if it was queued.")
    is_running: bool = Field(description="Whether that entry has not ended.")


class ServiceStatus(ResponseModel):
    """What this service is, and how full its queue is."""

    type: str = Field("view", description="What kind of component answers.")
    interfaces: list[str] = Field(
        default=["statusable", "observable", "taskable"], description="What it can be used for."
    )
    version: str = Field(description="Its version.")
    queue: QueueFigures = Field(description="How full the queue is.")
    jobs: list[JobStatus] = Field(
        default_factory=list, description="Your scheduler's jobs, the latest first."
    )
