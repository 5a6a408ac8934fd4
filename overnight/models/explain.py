"""Models of the explanation why a task is not running."""

from datetime import datetime
from typing import Any

from pydantic import Field

from overnight.models.base import ResponseModel


class Reason(ResponseModel):
    """One reason why a task is not running."""

    code: str = Field(description="A code for programs, such as lock or monthly_hours.")
    scope: str = Field(
        description="What it concerns: task, user (all tasks of the user) or deployment."
    )
    message: str = Field(description="What it is and what the caller can do about it.")
    details: dict[str, Any] = Field(default_factory=dict, description="The values behind it.")


class Explanation(ResponseModel):
    """Why a task is not running, judged by the same rules as a claim."""

    id: str = Field(description="The task's id.")
    state: str = Field(description="The state.")
    queue_position: int | None = Field(
        None,
        description="The position among your own tasks that can start, from 1; null unless it"
        " waits.",
    )
    starts_next: bool = Field(
        description="Whether nothing blocks it, so that the next claim takes it."
    )
    reasons: list[Reason] = Field(
        description="All reasons, from those of the task to those of the deployment."
    )
    made_at: datetime = Field(description="When this was determined.")
