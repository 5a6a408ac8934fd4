"""Models of improvement rules: bad figures of a user's own runs file a task."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

from pydantic import ConfigDict, Field

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.field_types import JsonObject, Number, ShortText, WholeNumber

Figure = Literal["failure_rate", "retries", "cost_usd", "duration_seconds"]
Grouping = Literal["type", "tag", "agent"]
RuleName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
MONTH_SECONDS = 31 * 24 * 3600


class RuleCreate(RequestModel):
    """A new improvement rule."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "failing-builds",
                    "figure": "failure_rate",
                    "above": 0.4,
                    "by": "type",
                    "subject": "build",
                    "task": {"type": "investigate"},
                }
            ]
        }
    )

    name: RuleName = Field(description="The name, for people and commands.")
    figure: Figure = Field(
        description="failure_rate: failed runs of all runs, from 0 to 1. retries: runs of a task"
        " after its first. cost_usd and duration_seconds: of a task, all runs together. The last"
        " three are averages."
    )
    above: Number = Field(ge=0, le=1_000_000, description="A task is filed above this value.")
    by: Grouping = Field("type", description="By what tasks are grouped.")
    subject: ShortText | None = Field(
        None, description="The only type, tag or agent that it concerns; each one if left out."
    )
    window_seconds: WholeNumber = Field(
        24 * 3600, ge=60, le=MONTH_SECONDS, description="How far back ended tasks count."
    )
    min_tasks: WholeNumber = Field(
        10, ge=1, le=1_000_000, description="How many tasks must have ended in the window."
    )
    task: JsonObject = Field(
        default_factory=dict,
        description="Fields of the task to file, whose texts may have {{ JSON pointers }} into the"
        " evidence, such as {{ /subject }}; there is a default for title, prompt and payload.",
    )


class RuleFields(TypedDict, total=False):
    """The fields of RuleCreate but name, figure and above, for type checkers."""

    by: str
    subject: str
    window_seconds: int
    min_tasks: int
    task: Mapping[str, Any]


class ImprovementRule(ResponseModel):
    """An improvement rule."""

    id: str = Field(description="The id.")
    name: str = Field(description="The name.")
    figure: str = Field(description="What is measured.")
    above: float = Field(description="A task is filed above this value.")
    by: str = Field(description="By what tasks are grouped.")
    subject: str | None = Field(None, description="The only type, tag or agent that it concerns.")
    window_seconds: int = Field(description="How far back ended tasks count.")
    min_tasks: int = Field(description="How many tasks must have ended in the window.")
    task: dict[str, Any] = Field(description="The task that it files.")
    created_at: datetime = Field(description="When it was added.")
    last_task_id: str | None = Field(None, description="The latest task that it has filed.")
    last_filed_at: datetime | None = Field(None, description="When it filed that task.")
    problem: str | None = Field(None, description="Why it could not file a task, if it could not.")


class RuleFigure(ResponseModel):
    """The figure of one subject of a rule now."""

    subject: str = Field(description="The type, tag or agent.")
    value: float | None = Field(description="The value of the figure.")
    tasks: int = Field(description="How many tasks count.")
    runs: int = Field(description="How many runs they had.")
    failures: int = Field(description="How many of the runs failed.")
    is_bad: bool = Field(description="Whether the value is above the limit, and of enough tasks.")
    open_task_id: str | None = Field(
        None, description="The task that the rule has filed about it, until that has ended."
    )


class RuleRemoved(ResponseModel):
    """The answer to the removal of a rule."""

    id: str = Field(description="The id.")
    removed: bool = Field(default=True, description="Always true.")
