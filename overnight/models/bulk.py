"""What travels when something is done to many tasks at once."""

from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

from pydantic import ConfigDict, Field, StrictBool

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.field_types import Instant, Text, WholeNumber

FilterText = Annotated[Text, Field(min_length=1, max_length=500)]


class TaskFilter(RequestModel):
    """Which tasks are meant: those for which all that is named holds, as in the list of tasks."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"status": "failed", "type": "echo"}]}
    )

    status: FilterText | None = Field(None, description="Only in this status or state.")
    type: FilterText | None = Field(None, description="Only of this type.")
    tag: FilterText | None = Field(None, description="Only with this tag.")
    project_id: FilterText | None = Field(None, description="Only of this project.")
    source: FilterText | None = Field(None, description="Only what came through this door.")
    created_after: Instant | None = Field(None, description="Made then or later.")
    created_before: Instant | None = Field(None, description="Made before then.")
    title: FilterText | None = Field(None, description="Whose title has these words.")


class FilterFields(TypedDict, total=False):
    """The fields of TaskFilter, for editors; None counts as left out."""

    status: str | None
    type: str | None
    tag: str | None
    project_id: str | None
    source: str | None
    created_after: datetime | None
    created_before: datetime | None
    title: str | None


class BulkRequest(RequestModel):
    """One action for all tasks that a filter chooses."""

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
        description="What to do to each of them."
    )
    filter: TaskFilter = Field(
        default_factory=TaskFilter, description="Which tasks are meant; the list takes the same."
    )
    everything: StrictBool = Field(
        default=False, description="Whether all your tasks are meant; then there is no filter."
    )
    priority: WholeNumber | None = Field(
        None, ge=1, le=4, description="For reprioritise: 1 critical to 4 low."
    )
    priority_score: WholeNumber | None = Field(
        None, ge=0, le=100, description="For reprioritise: the exact score; wins over priority."
    )
    preview: StrictBool = Field(
        default=False, description="Whether to tell only what would be done."
    )
    idempotency_key: Annotated[Text, Field(min_length=1, max_length=255)] | None = Field(
        None, description="A second request with the same key answers with the first operation."
    )


class BulkPreview(ResponseModel):
    """What a bulk operation would come to; nothing was changed."""

    action: str = Field(description="What would be done.")
    total: int = Field(description="How many tasks the filter chooses.")
    applies: int = Field(description="To how many of them the action applies as they stand.")
    sample: list[str] = Field(description="The newest of those, five at most.")


class BulkOperation(ResponseModel):
    """Something that is done to many tasks, and how far it has got."""

    id: str = Field(description="Its name, bulk_ and a ULID.")
    action: str = Field(description="retry, cancel or reprioritise.")
    filter: dict[str, Any] = Field(description="Which tasks were meant; empty for all.")
    priority_score: int | None = Field(None, description="What reprioritise sets.")
    state: str = Field(description="running, completed or cancelled.")
    total: int = Field(description="How many tasks the filter chose when it was asked for.")
    done: int = Field(description="How many have been dealt with: the sum of the following.")
    changed: int = Field(description="How many the action was done to.")
    skipped: int = Field(
        description="How many it did not apply to, or that the filter chose no more."
    )
    refused: dict[str, int] = Field(description="How many were refused it, by the reason.")
    created_by: str = Field(description="Who asked for it.")
    created_at: datetime = Field(description="When.")
    finished_at: datetime | None = Field(None, description="When it ended, if it has.")

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.state != "running"
