"""Schedules in a chaos run: fire times that are submitted one after the other by the sweep."""

from datetime import datetime, timedelta
from typing import Final

from overnight.models.schedules import BackfillRequest, ScheduleCreate
from overnight_server.control.schedules import add_schedule, backfill
from overnight_server.domain.ids import UserId
from overnight_server.settings import Settings
from tests.chaos.stack import ChaosStack

# A schedule that is paused adds nothing by itself, so the run can be drained.
TASK: Final = {"title": "scheduled {{ fire_time }}", "type": "agent", "max_attempts": 8}
SETTINGS: Final = Settings(database_url="postgresql://unused")


def schedule_past_times(stack: ChaosStack, user_id: UserId, *, name: str, count: int) -> None:
    """Add a schedule of one task for this user, and let its last `count` fire times run."""
    deployment = stack.deployment
    body = ScheduleCreate(name=name, when="* * * * *", task=TASK, paused=True)
    actor = f"user:{user_id}"
    schedule_id = add_schedule(deployment.app, user_id, body, SETTINGS, actor=actor)
    now: datetime = deployment.one("SELECT clock() AS now")["now"]
    minute = now.replace(second=0, microsecond=0)
    request = BackfillRequest(since=minute - timedelta(minutes=count), until=minute)
    backfill(deployment.app, user_id, schedule_id, request, actor=actor)
