"""Models of a task's history."""

from datetime import datetime
from typing import Any

from pydantic import Field

from overnight.models.base import ResponseModel


class SegmentHolder(ResponseModel):
    """Who or what a task waited for, or the worker that ran it."""

    kind: str = Field(description="What it is: task, user, pool or worker.")
    id: str = Field(description="The task's id, the worker's id or the name.")
    title: str | None = Field(None, description="The task's title.")


class LifeSegment(ResponseModel):
    """A part of a task's life with one cause."""

    kind: str = Field(
        description="What happened to the task: waiting, claimed, running, checking or ended"
        " (between its end and a later retry)."
    )
    code: str = Field(
        description="The narrowest reason why it waited, with the codes of explain; state if it"
        " did not wait."
    )
    since: datetime = Field(description="When the segment begins: the end of the one before.")
    until: datetime = Field(description="When it ends.")
    seconds: float = Field(description="How long it is.")
    is_open: bool = Field(default=False, description="Whether it continues now.")
    text: str = Field(description="The cause as a sentence.")
    holder: SegmentHolder | None = Field(None, description="Who held the task, or ran it.")
    clears_at: datetime | None = Field(
        None, description="When the cause of an open segment ends by itself, if that is known."
    )
    act: str | None = Field(
        None, description="The command that ends the cause of an open segment, if there is one."
    )
    epoch: int | None = Field(None, description="The run, counted in claims; null while waiting.")
    outcome: str | None = Field(None, description="How the run ended.")
    also: list[str] = Field(
        default_factory=list, description="The codes of wider reasons that held as well."
    )
    details: dict[str, Any] = Field(default_factory=dict, description="The values behind it.")


class CauseTotal(ResponseModel):
    """How much of a time one cause took."""

    kind: str = Field(description="The kind of the segments: waiting, running and so on.")
    code: str = Field(description="The cause.")
    label: str = Field(description="The cause in a few words.")
    seconds: float = Field(description="How long it took in all.")
    share: float = Field(description="The part of the whole, from 0 to 1.")


class TaskLife(ResponseModel):
    """A task's life, from its creation to its end or to now, without gap or overlap."""

    id: str = Field(description="The task's id.")
    title: str = Field(description="The title.")
    state: str = Field(description="The state.")
    created_at: datetime = Field(description="When the task was created.")
    until: datetime = Field(description="When it ended, or now.")
    is_over: bool = Field(description="Whether the task has ended.")
    segments: list[LifeSegment] = Field(description="The parts of its life in order.")
    by_cause: list[CauseTotal] = Field(description="The same by cause, the longest first.")
    made_at: datetime = Field(description="When this was determined.")
