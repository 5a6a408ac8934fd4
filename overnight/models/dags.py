"""Models of graphs."""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.enums import TaskStatus
from overnight.models.field_types import Instant, Number, Text
from overnight.models.json_values import check_text
from overnight.models.tasks import TaskBody

# Larger than any deployment's limit; that limit is checked by the service.
MOST_TASKS = 100_000
MOST_EDGES = 1_000_000
Condition = Literal["success", "finished", "failure"]
Policy = Literal["cancel", "continue"]
NAME = r"^\w[\w.-]*$"
# Names are used in files and messages, so they contain no characters that need quoting.
Name = Annotated[
    str,
    Field(min_length=1, max_length=100, pattern=NAME),
    AfterValidator(check_text),
]
Title = Annotated[Text, Field(min_length=1, max_length=500)]
Key = Annotated[Text, Field(min_length=1, max_length=255)]


class DagStatus(StrEnum):
    """The status of a graph."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether all tasks of the graph have ended."""
        return self in {DagStatus.COMPLETED, DagStatus.FAILED, DagStatus.CANCELLED}


class After(RequestModel):
    """One dependency of a task; a name alone means `{"task": name}`."""

    task: Name = Field(description="The name of the task to wait for.")
    condition: Condition = Field(
        "success",
        description="How that task must end: success, failure, or finished (either).",
    )
    on_unmet: Policy | None = Field(
        None,
        description="What happens to the waiting task if that task ends otherwise: cancel or"
        " continue. The default is the on_unmet of the waiting task.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"task": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe the form with a name alone, too."""
        whole = handler.resolve_ref_schema(handler(core))
        name = whole["properties"]["task"]
        return {"anyOf": [{**name, "description": "The name of a task."}, whole]}


class DagEdge(RequestModel):
    """One dependency between two tasks, by their names."""

    parent: Name = Field(description="The task that must end first.")
    child: Name = Field(description="The task that waits for it.")
    condition: Condition = Field("success", description="How the parent must end.")
    on_unmet: Policy | None = Field(
        None,
        description="What happens to the child if the parent ends otherwise; the default is the"
        " on_unmet of the child.",
    )


def _accept_one_item(schema: dict[str, Any]) -> None:
    """Change the schema of a list so that it also allows a single item."""
    kept: dict[str, Any] = {
        name: schema.pop(name) for name in ("description", "default") if name in schema
    }
    whole = dict(schema)
    schema.clear()
    schema.update(kept, anyOf=[whole, whole["items"]])


class DagTask(TaskBody):
    """One task of a graph: the fields of TaskBody, a name, and dependencies."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "build", "title": "build the site"}]}
    )

    name: Name = Field(description="The name by which other tasks of the graph refer to it.")
    title: Title = Field("", description="The title; the name if left out.")
    after: tuple[After, ...] = Field(
        (),
        max_length=MOST_TASKS,
        validation_alias=AliasChoices("after", "depends_on"),
        description="The tasks it depends on: names, or objects with task and condition; a single"
        " one needs no list.",
        json_schema_extra=_accept_one_item,
    )
    on_unmet: Policy | None = Field(
        None,
        description="What happens to it if a dependency ends otherwise than required, for instance"
        " by failing: cancel or continue. The default is the on_unmet of the graph.",
    )
    idempotency_key: None = Field(
        None,
        description="Must be null. Send the idempotency key of the whole graph, not of one task.",
    )

    @field_validator("after", mode="before")
    @classmethod
    def _to_list(cls, value: object) -> object:
        return [value] if isinstance(value, (str, Mapping, After)) else value

    @model_validator(mode="before")
    @classmethod
    def _default_title(cls, value: object) -> object:
        if not isinstance(value, Mapping) or "title" in value:
            return value
        name = value.get("name")
        # A wrong name is reported once, not as a wrong title too.
        is_legal = isinstance(name, str) and re.fullmatch(NAME, name) is not None
        return {**value, "title": name if is_legal else "?"}


class DagCreate(RequestModel):
    """A graph to create; all its tasks are created, or none."""

    title: Title = Field(description="The title, shown in lists and reports.")
    tasks: tuple[DagTask, ...] = Field(
        min_length=1, max_length=MOST_TASKS, description="The tasks; names must be unique."
    )
    edges: tuple[DagEdge, ...] = Field(
        (),
        max_length=MOST_EDGES,
        description="Dependencies, in addition to `after` of the tasks.",
    )
    on_unmet: Policy = Field(
        "cancel",
        description="What happens to a task if a dependency ends otherwise than required, for"
        " instance by failing: cancel or continue.",
    )
    budget_usd: Number | None = Field(
        None,
        ge=0,
        le=999_999,
        description="What all tasks together may cost; then they wait for an approval.",
    )
    idempotency_key: Key | None = Field(
        None, description="A second create with the same key returns the first graph."
    )


class DagPlanRequest(DagCreate):
    """A graph to simulate."""

    by_at: Instant | None = Field(None, description="The time by which it should be done.")


class CriticalPath(ResponseModel):
    """The longest chain of tasks, which determines the duration of the graph."""

    tasks: list[str] = Field(
        description="The tasks on the path, in order: the name of each, or its id without a name."
    )
    weight: int = Field(description="The number of its tasks.")


class DagCreated(ResponseModel):
    """A graph that was created."""

    id: str = Field(description="The graph's id: dag_ and a ULID.")
    title: str = Field(description="The title.")
    status: DagStatus = Field(description="The state.")
    tasks: dict[str, str] = Field(description="The ids of the tasks by name.")
    roots: list[str] = Field(description="The names of tasks without dependencies.")
    leaves: list[str] = Field(description="The names of tasks that no other depends on.")
    critical_path: CriticalPath = Field(description="The longest chain of tasks.")


class DagCounts(ResponseModel):
    """The number of tasks of a graph by status."""

    total: int = Field(description="All tasks.")
    open: int = Field(description="Tasks that wait or run.")
    completed: int = Field(description="Completed tasks.")
    failed: int = Field(description="Dead-lettered tasks.")
    cancelled: int = Field(description="Cancelled tasks, including those behind a failed one.")


class DagSummary(ResponseModel):
    """A graph without its tasks."""

    id: str = Field(description="The graph's id.")
    title: str = Field(description="The title.")
    status: DagStatus = Field(description="The state.")
    counts: DagCounts = Field(description="The number of tasks by status.")
    budget_usd: float | None = Field(None, description="What it may cost; null means no limit.")
    spent_usd: float = Field(0.0, description="The cost of its runs so far.")
    created_by: str = Field("", description="Who created it.")
    created_at: datetime = Field(description="When it was created.")
    finished_at: datetime | None = Field(None, description="When its last task ended.")
    forked_from: str | None = Field(None, description="The graph that it was forked from.")

    @property
    def is_final(self) -> bool:
        """Whether all tasks of the graph have ended."""
        return self.status.is_final


class DagTaskState(ResponseModel):
    """One task of a graph."""

    id: str = Field(description="The task's id: task_ and a ULID.")
    name: str | None = Field(None, description="The task's name in the graph.")
    title: str = Field(description="The title.")
    type: str = Field(description="The type of the task.")
    status: TaskStatus = Field(description="The public status.")
    state: str = Field(description="The exact state.")
    attempts: int = Field(0, description="The number of runs that spent an attempt.")
    max_attempts: int = Field(description="The maximum number of attempts.")
    started_at: datetime | None = Field(None, description="When its latest run started.")
    completed_at: datetime | None = Field(None, description="When it ended.")
    run_seconds: float | None = Field(
        None, description="The duration of its latest run so far, in seconds."
    )
    progress: dict[str, Any] | None = Field(
        None, description="The latest progress report of the run."
    )
    failure_reason: str | None = Field(None, description="The error class of the latest failure.")
    error: str | None = Field(None, description="The error message of the latest failure.")
    cost_usd: float = Field(0.0, description="The cost of all its runs.")
    wait_reason: str | None = Field(
        None, description="Why it is pending after a run: approval or children."
    )

    @property
    def label(self) -> str:
        """The name, or the title of a task without one."""
        return self.name or self.title


class DagEdgeState(ResponseModel):
    """One dependency of a graph, by the ids of the two tasks."""

    parent: str = Field(description="The task that must end first.")
    child: str = Field(description="The task that waits for it.")
    condition: Condition = Field(description="How the parent must end.")
    on_unmet: Policy = Field(
        "cancel", description="What happens to the child if the parent ends otherwise."
    )
    satisfied: bool = Field(description="Whether the condition is met.")


class Dag(DagSummary):
    """A graph with its tasks and edges, unless the request left them out."""

    roots: list[str] = Field(default_factory=list, description="Tasks without dependencies.")
    leaves: list[str] = Field(default_factory=list, description="Tasks that no other depends on.")
    critical_path: CriticalPath | None = Field(None, description="The longest chain of tasks.")
    tasks: list[DagTaskState] = Field(default_factory=list, description="The tasks, oldest first.")
    edges: list[DagEdgeState] = Field(default_factory=list, description="The dependencies.")


class DagCancelled(ResponseModel):
    """The response to the cancel of a graph."""

    cancelled: int = Field(description="The number of tasks that were cancelled at once.")
    stopping: int = Field(description="The number of running tasks that were requested to stop.")
    status: DagStatus = Field(description="The graph's status now.")


class DagRetried(ResponseModel):
    """The tasks that a retry made run again."""

    dag_id: str = Field(description="The graph.")
    tasks: list[str] = Field(
        description="The ids of the tasks that run again, the requested one first."
    )


class DagFork(RequestModel):
    """The options of a fork."""

    title: Title | None = Field(
        None, description="The title of the new graph; that of the old one if left out."
    )
    idempotency_key: Key | None = Field(
        None, description="A second fork with the same key returns the first one."
    )


class DagForked(DagCreated):
    """A new graph that repeats a part of an old one."""

    forked_from: str = Field(description="The old graph, which is not changed.")
