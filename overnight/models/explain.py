"""What the service says when it is asked why a task is not running."""

from datetime import datetime
from typing import Any

from pydantic import Field

from overnight.models.base import ResponseModel


class Reason(ResponseModel):
    """One reason a task is not running."""

    code: str = Field(description="A word for programs, such as lock or monthly_hours.")
    message: str = Field(description="What it is and what can be done about it, for people.")
    details: dict[str, Any] = Field(default_factory=dict, description="The facts behind it.")


class Explanation(ResponseModel):
    """Why a task is not running, in the words of the gate that lets tasks start."""

    id: str = Field(description="The task's name.")
    state: str = Field(description="Where it stands.")
    queue_position: int | None = Field(
        None, description="Its place among your own startable tasks, from 1, while it waits."
    )
    starts_next: bool = Field(
        description="Whether nothing holds it: it starts with the gate's next pass."
    )
    reasons: list[Reason] = Field(description="Everything that holds it, the first thing first.")
    made_at: datetime = Field(description="When this was true.")
