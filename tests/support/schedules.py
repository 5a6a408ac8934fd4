"""Schedules for tests: create them with few words, and read what became of their fire times."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from overnight.models.schedules import ScheduleCreate
from overnight_server.control.schedules import add_schedule
from overnight_server.domain.ids import ScheduleId, UserId
from overnight_server.settings import Settings
from tests.support.deployment import Deployment

SETTINGS = Settings(database_url="postgresql://unused", max_pending_per_user=200)


def add(
    deployment: Deployment,
    user: UserId,
    when: str = "every day at 22:00",
    *,
    settings: Settings = SETTINGS,
    **fields: Any,
) -> ScheduleId:
    """Create a schedule of a task; fields override."""
    task = {} if "graph" in fields else {"task": {"title": "report {{ fire_date }}"}}
    body = ScheduleCreate(**{"name": "nightly", "when": when, **task, **fields})
    return add_schedule(deployment.app, user, body, settings, actor=f"user:{user}")


def fires(deployment: Deployment, schedule: UUID) -> list[Mapping[str, Any]]:
    """Return the fire times of a schedule that have rows, in order."""
    sql = "SELECT * FROM schedule_fires WHERE schedule_id = :id ORDER BY fire_at"
    return deployment.rows(sql, id=schedule)


def outcomes(deployment: Deployment, schedule: UUID) -> list[tuple[str, str]]:
    """Return the fire times of a schedule as text, and what became of them."""
    return [(text(row["fire_at"]), row["status"]) for row in fires(deployment, schedule)]


def submitted(deployment: Deployment) -> list[Mapping[str, Any]]:
    """Return the tasks that schedules have submitted, the oldest first."""
    return deployment.rows("SELECT * FROM tasks WHERE source = 'scheduler' ORDER BY id")


def at(instant: str) -> datetime:
    """Return the instant of a text such as 2026-07-01T20:00Z."""
    return datetime.fromisoformat(instant)


def text(instant: datetime) -> str:
    """Return an instant as text without seconds, such as 07-01 20:00."""
    return f"{instant:%m-%d %H:%M}"
