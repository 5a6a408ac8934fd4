"""Models of bulk operations: one action on many tasks."""

from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

from pydantic import ConfigDict, Field, StrictBool

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.field_types import Instant, Number, Text, WholeNumber

WaitCode = Literal["dependency", "start_at", "retry_at", "approval", "lock", "ready"]
FilterText = Annotated[Text, Field(min_length=1, max_length=500)]


class TaskFilter(RequestModel):
    """Criteria that select tasks; a task must match all that are given."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"status": "failed", "type": "echo"}]}
    )

    status: FilterText | None = Field(
        None, description="The status or state, or several with commas."
    )
    type: FilterText | None = Field(None, description="The type.")
    tag: FilterText | None = Field(None, description="A tag.")
    project_id: FilterText | None = Field(None, description="The project.")
    source: FilterText | None = Field(None, description="The source: api, cli, web, scheduler, …")
    created_after: Instant | None = Field(None, description="Created at that time or later.")
    created_before: Instant | None = Field(None, description="Created before that time.")
    title: FilterText | None = Field(None, description="Text that the title contains.")
    dag_id: FilterText | None = Field(None, description="The graph to which it belongs.")
    ended_after: Instant | None = Field(None, description="Ended at that time or later.")
    ended_before: Instant | None = Field(None, description="Ended before that time.")
    created_by: FilterText | None = Field(
        None, description="Who created it, such as human:ada, or the name alone."
    )
    error: FilterText | None = Field(
        None, description="The error class of the latest failure, or a part of its message."
    )
    lock: FilterText | None = Field(None, description="A lock that it holds while it runs.")
    min_cost_usd: Number | None = Field(None, ge=0, description="It has cost that much or more.")
    below_cost_usd: Number | None = Field(None, ge=0, description="It has cost less than that.")
    min_attempts: WholeNumber | None = Field(
        None, ge=0, le=1_000_000, description="It has spent so many attempts or more."
    )
    waits_for: WaitCode | None = Field(
        None, description="What it waits for, as far as the task itself tells."
    )
    fingerprint: FilterText | None = Field(
        None, description="The group of dead letters to which it belongs; it is dead-lettered."
    )


class FilterFields(TypedDict, total=False):
    """The fields of TaskFilter for type checkers; None means not given."""

    status: str | None
    type: str | None
    tag: str | None
    project_id: str | None
    source: str | None
    created_after: datetime | None
    created_before: datetime | None
    title: str | None
    dag_id: str | None
    ended_after: datetime | None
    ended_before: datetime | None
    created_by: str | None
    error: str | None
    lock: str | None
    min_cost_usd: float | None
    below_cost_usd: float | None
    min_attempts: int | None
    waits_for: WaitCode | None
    fingerprint: str | None


class BulkRequest(RequestModel):
    """A request for one action on all tasks that a filter selects."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"action": "retry", "filter": {"status": "failed", "type": "echo"}},
                {"action": "reprioritise", "filter": {"tag": "night"}, "priority": 2},
                {"action": "cancel", "everything": True, "preview": True},
            ]
        }
    )

    action: Literal["retry", "cancel", "reprioritise"] = Field(
        description="The action on each task."
    )
    filter: TaskFilter = Field(
        default_factory=TaskFilter,
        description="Which tasks to select; same criteria as the list of tasks.",
    )
    everything: StrictBool = Field(
        default=False,
        description="Whether to select all your tasks; then the filter must be empty.",
    )
    priority: WholeNumber | None = Field(
        None, ge=1, le=4, description="For reprioritise: 1 critical to 4 low."
    )
    priority_score: WholeNumber | None = Field(
        None, ge=0, le=100, description="For reprioritise: the exact score; overrides priority."
    )
    preview: StrictBool = Field(
        default=False, description="Whether to return only what would be done."
    )
    idempotency_key: Annotated[Text, Field(min_length=1, max_length=255)] | None = Field(
        None, description="A second request with the same key returns the first operation."
    )


class BulkPreview(ResponseModel):
    """What a bulk operation would do; nothing was changed."""

    action: str = Field(description="The action.")
    total: int = Field(description="How many tasks the filter selects.")
    applies: int = Field(description="To how many of them the action applies now.")
    sample: list[str] = Field(description="The ids of the newest of those, at most five.")


class BulkOperation(ResponseModel):
    """A bulk operation and its progress."""

    id: str = Field(description="The operation's id: bulk_ and a ULID.")
    action: str = Field(description="retry, cancel or reprioritise.")
    filter: dict[str, Any] = Field(description="The criteria; empty for all tasks.")
    priority_score: int | None = Field(None, description="The score that reprioritise sets.")
    state: str = Field(description="running, completed or cancelled.")
    total: int = Field(description="How many tasks the filter selected at the start.")
    done: int = Field(
        description="How many tasks have been processed: the sum of changed, skipped and refused."
    )
    changed: int = Field(description="How many tasks were changed.")
    skipped: int = Field(
        description="How many tasks the action did not apply to, or that no longer matched."
    )
    refused: dict[str, int] = Field(description="How many tasks refused the action, by error code.")
    created_by: str = Field(description="Who created it.")
    created_at: datetime = Field(description="When it was created.")
    finished_at: datetime | None = Field(None, description="When it ended; null if it has not.")

    @property
    def is_final(self) -> bool:
        """Whether the operation has ended."""
        return self.state != "running"
