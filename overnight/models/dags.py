"""What travels between a producer and the service about graphs, field by field."""

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
from overnight.models.tasks import TaskCreate

# More than any service lets in; what it does let in is told with the refusal.
MOST_TASKS = 100_000
MOST_EDGES = 1_000_000
Condition = Literal["success", "finished", "failure"]
Policy = Literal["cancel", "continue"]
NAME = r"^\w[\w.-]*$"
# Written in files and in messages, so nothing that would need quoting there.
Name = Annotated[
    str,
    Field(min_length=1, max_length=100, pattern=NAME),
    AfterValidator(check_text),
]
Title = Annotated[Text, Field(min_length=1, max_length=500)]
Key = Annotated[Text, Field(min_length=1, max_length=255)]


class DagStatus(StrEnum):
    """Where a graph stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing in the graph can move any more."""
        return self in {DagStatus.COMPLETED, DagStatus.FAILED, DagStatus.CANCELLED}


class After(RequestModel):
    """One task to wait for; its name alone stands for `{"task": name}`."""

    task: Name = Field(description="The name of the task that is waited for.")
    condition: Condition = Field(
        "success",
        description="How it must end: success, finished (in whatever way) or failure.",
    )
    on_unmet: Policy | None = Field(
        None,
        description="What becomes of the task that waits if it ended otherwise: cancel, or"
        " continue. Left out, what the task says.",
    )

    @model_validator(mode="before")
    @classmethod
    def _a_name_alone(cls, given: object) -> object:
        return {"task": given} if isinstance(given, str) else given

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe the name alone, too."""
        whole = handler.resolve_ref_schema(handler(core))
        name = whole["properties"]["task"]
        return {"anyOf": [{**name, "description": "The name of a task."}, whole]}


class DagEdge(RequestModel):
    """One dependency between two tasks of a graph, by their names."""

    parent: Name = Field(description="The task that is waited for.")
    child: Name = Field(description="The task that waits.")
    condition: Condition = Field("success", description="How the parent must end.")
    on_unmet: Policy | None = Field(
        None,
        description="What becomes of the child if it ended otherwise; left out, what the child"
        " says.",
    )


def _or_one_alone(schema: dict[str, Any]) -> None:
    """Describe one item where a list of them may stand, too."""
    told: dict[str, Any] = {
        name: schema.pop(name) for name in ("description", "default") if name in schema
    }
    whole = dict(schema)
    schema.clear()
    schema.update(told, anyOf=[whole, whole["items"]])


class DagTask(TaskCreate):
    """One task of a graph: the fields of a create, a name, and what it waits for."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "build", "title": "build the site"}]}
    )

    name: Name = Field(description="What the other tasks of the graph call it.")
    title: Title = Field("", description="What people read; left out, the name.")
    after: tuple[After, ...] = Field(
        (),
        max_length=MOST_TASKS,
        validation_alias=AliasChoices("after", "depends_on"),
        description="The tasks it waits for: names, or objects with task and condition; one alone"
        " needs no list.",
        json_schema_extra=_or_one_alone,
    )
    on_unmet: Policy | None = Field(
        None,
        description="What becomes of it when a task it waits for ends otherwise than it wants,"
        " such as by failing: cancel, or continue. Left out, what the graph says.",
    )
    idempotency_key: None = Field(
        None, description="Not here: a graph goes in whole, under a key of its own."
    )

    @field_validator("after", mode="before")
    @classmethod
    def _one_alone(cls, given: object) -> object:
        return [given] if isinstance(given, (str, Mapping, After)) else given

    @model_validator(mode="before")
    @classmethod
    def _titled(cls, given: object) -> object:
        if not isinstance(given, Mapping) or "title" in given:
            return given
        name = given.get("name")
        # A wrong name is one mistake, and told once.
        sound = isinstance(name, str) and re.fullmatch(NAME, name) is not None
        return {**given, "title": name if sound else "?"}


class DagCreate(RequestModel):
    """A graph to be queued, whole or not at all."""

    title: Title = Field(description="What people read in lists and reports.")
    tasks: tuple[DagTask, ...] = Field(
        min_length=1, max_length=MOST_TASKS, description="The tasks, each with its own name."
    )
    edges: tuple[DagEdge, ...] = Field(
        (),
        max_length=MOST_EDGES,
        description="Who waits for whom, besides what the tasks themselves say with `after`.",
    )
    on_unmet: Policy = Field(
        "cancel",
        description="What becomes of a task when one it waits for ends otherwise than it wants,"
        " such as by failing: cancel it, or continue.",
    )
    budget_usd: Number | None = Field(
        None,
        ge=0,
        le=999_999,
        description="What all its tasks together may cost; then they pause and ask.",
    )
    idempotency_key: Key | None = Field(
        None, description="A second create with the same key answers with the first graph."
    )


class DagPlanRequest(DagCreate):
    """A graph that might be queued."""

    by_at: Instant | None = Field(
        None, description="The instant by which one would like to see it done."
    )


class CriticalPath(ResponseModel):
    """The longest chain of tasks: nothing shortens the graph but shortening this."""

    tasks: list[str] = Field(description="The names along it, or ids where there is no name.")
    weight: int = Field(description="How many tasks it is long.")


class DagCreated(ResponseModel):
    """A graph that was taken in."""

    id: str = Field(description="The graph's name, dag_ and a ULID.")
    title: str = Field(description="What people read.")
    status: DagStatus = Field(description="Where it stands.")
    tasks: dict[str, str] = Field(description="The id of each task, by its name.")
    roots: list[str] = Field(description="The names of those that wait for nobody.")
    leaves: list[str] = Field(description="The names of those that nobody waits for.")
    critical_path: CriticalPath = Field(description="The longest chain.")


class DagCounts(ResponseModel):
    """How many tasks of a graph stand where."""

    total: int = Field(description="All of them.")
    open: int = Field(description="Those that wait or run.")
    completed: int = Field(description="Those that ended well.")
    failed: int = Field(description="Those that were given up.")
    cancelled: int = Field(description="Those that were cancelled, or followed one that failed.")


class DagSummary(ResponseModel):
    """A graph in a list."""

    id: str = Field(description="The graph's name.")
    title: str = Field(description="What people read.")
    status: DagStatus = Field(description="Where it stands.")
    counts: DagCounts = Field(description="How many of its tasks stand where.")
    budget_usd: float | None = Field(None, description="What it may cost; null is no limit.")
    spent_usd: float = Field(0.0, description="What its runs have cost.")
    created_by: str = Field("", description="Who asked for it.")
    created_at: datetime = Field(description="When it was accepted.")
    finished_at: datetime | None = Field(None, description="When the last of it ended.")
    forked_from: str | None = Field(None, description="The graph it began as a fork of.")

    @property
    def is_final(self) -> bool:
        """Whether nothing in the graph can move any more."""
        return self.status.is_final


class DagTaskState(ResponseModel):
    """One task of a graph, as it stands."""

    id: str = Field(description="The task's name, task_ and a ULID.")
    name: str | None = Field(None, description="What its graph calls it.")
    title: str = Field(description="What people read.")
    type: str = Field(description="Which handler runs it.")
    status: TaskStatus = Field(description="Where it stands, in the small public set of words.")
    state: str = Field(description="Where it stands exactly.")
    attempts: int = Field(0, description="Runs that spent an attempt.")
    max_attempts: int = Field(description="How many may.")
    started_at: datetime | None = Field(None, description="When its latest run began.")
    completed_at: datetime | None = Field(None, description="When it ended, in whatever way.")
    run_seconds: float | None = Field(
        None, description="How long its latest run took, or has taken so far."
    )
    progress: dict[str, Any] | None = Field(None, description="The latest word from the run.")
    failure_reason: str | None = Field(None, description="The class of the latest failure.")
    error: str | None = Field(None, description="The message of the latest failure.")
    cost_usd: float = Field(0.0, description="What all its runs have cost.")
    wait_reason: str | None = Field(
        None, description="Why it is pending after a run: approval, or children."
    )

    @property
    def label(self) -> str:
        """What to call it in a drawing: its name, or its title."""
        return self.name or self.title


class DagEdgeState(ResponseModel):
    """One dependency of a graph, by the ids of its tasks."""

    parent: str = Field(description="The task that is waited for.")
    child: str = Field(description="The task that waits.")
    condition: Condition = Field(description="How the parent must end.")
    on_unmet: Policy = Field(
        "cancel", description="What becomes of the child if the parent ended otherwise."
    )
    satisfied: bool = Field(description="Whether it has.")


class Dag(DagSummary):
    """A graph as it stands, with its tasks and edges unless those were left out."""

    roots: list[str] = Field(default_factory=list, description="Those that wait for nobody.")
    leaves: list[str] = Field(default_factory=list, description="Those nobody waits for.")
    critical_path: CriticalPath | None = Field(None, description="The longest chain.")
    tasks: list[DagTaskState] = Field(default_factory=list, description="Its tasks, oldest first.")
    edges: list[DagEdgeState] = Field(default_factory=list, description="Who waits for whom.")


class DagCancelled(ResponseModel):
    """The answer to the cancel of a graph."""

    cancelled: int = Field(description="Tasks that were ended at once.")
    stopping: int = Field(description="Tasks that run and were asked to stop.")
    status: DagStatus = Field(description="Where the graph stands now.")


class DagRetried(ResponseModel):
    """The answer to a retry: what came back."""

    dag_id: str = Field(description="The graph, which runs again.")
    tasks: list[str] = Field(description="Ids of the tasks that came back, an asked one first.")


class DagFork(RequestModel):
    """What a fork may be told."""

    title: Title | None = Field(None, description="Left out, the title of the old graph.")
    idempotency_key: Key | None = Field(
        None, description="A second fork with the same key answers with the first one."
    )


class DagForked(DagCreated):
    """The answer to a fork: a new graph, in which a part of the old one runs anew."""

    forked_from: str = Field(description="The old graph, which stays as it is.")
