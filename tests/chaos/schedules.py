"""Schedules in a chaos run: some that fire during the faults, and past times that are run again."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from overnight.models.schedules import BackfillRequest, ScheduleCreate
from overnight_server.control.schedules import add_schedule, backfill
from overnight_server.domain.ids import UserId
from overnight_server.settings import Settings
from tests.chaos.checks import Findings, as_findings
from tests.chaos.stack import ChaosStack

TASK: Final = {"title": "scheduled {{ fire_time }}", "type": "agent", "max_attempts": 8}
SETTINGS: Final = Settings(database_url="postgresql://unused")
# Active schedules fire so often, which no user's words can say.
EVERY: Final = timedelta(seconds=4)
ACTIVE: Final = "active"
OVERLAPS: Final = ("queue", "skip", "cancel")
FIRES: Final = "fire times submitted"


def schedule_past_times(stack: ChaosStack, user_id: UserId, *, name: str, count: int) -> None:
    """Add a schedule of one task for this user, and let its last `count` fire times run.

    It is paused: the sweep submits these fire times and no others.
    """
    deployment = stack.deployment
    body = ScheduleCreate(name=name, when="* * * * *", task=TASK, paused=True)
    actor = f"user:{user_id}"
    schedule_id = add_schedule(deployment.app, user_id, body, SETTINGS, actor=actor)
    minute = _now(stack).replace(second=0, microsecond=0)
    request = BackfillRequest(since=minute - timedelta(minutes=count), until=minute)
    backfill(deployment.app, user_id, schedule_id, request, actor=actor)


def add_active_schedules(stack: ChaosStack, user_ids: Sequence[UserId], seconds: float) -> None:
    """Let a schedule of each user fire every few seconds for so long; they end by themselves."""
    now = _now(stack)
    for number, user_id in enumerate(user_ids):
        # Each at instants of its own.
        starts_at = now + timedelta(seconds=1) + number * EVERY / len(user_ids)
        body = ScheduleCreate(
            name=ACTIVE,
            when="every 7 minutes",
            # Tasks of every kind wait for their user's slots; these are to run soon.
            task={**TASK, "priority_score": 0},
            starts_at=starts_at,
            ends_at=now + timedelta(seconds=seconds),
            overlap=OVERLAPS[number % len(OVERLAPS)],
        )
        add_schedule(stack.deployment.app, user_id, body, SETTINGS, actor=f"user:{user_id}")
    stack.deployment.run(
        "UPDATE schedules SET every_seconds = :seconds WHERE name = :name",
        seconds=int(EVERY.total_seconds()),
        name=ACTIVE,
    )


def fires_submitted(stack: ChaosStack) -> int:
    """Count the fire times of active schedules that were submitted."""
    sql = "SELECT count(*) AS n FROM schedule_fires WHERE kind = 'scheduled' AND status = 'queued'"
    return int(stack.deployment.one(sql)["n"])


def check_fires(stack: ChaosStack) -> Findings:
    """Find fire times of active schedules that have no outcome, or one that nothing explains."""
    rows = stack.deployment.rows
    return compare_fires(
        rows("SELECT * FROM schedules WHERE name = :name", name=ACTIVE),
        rows("SELECT schedule_id, fire_at, status FROM schedule_fires WHERE kind = 'scheduled'"),
    )


def compare_fires(
    schedules: Iterable[Mapping[str, Any]], fires: Iterable[Mapping[str, Any]]
) -> Findings:
    """Compare the fires of active schedules that have ended with the fire times, found apart."""
    statuses = {(row["schedule_id"], row["fire_at"]): row["status"] for row in fires}
    explained: dict[tuple[UUID, datetime], set[str]] = {}
    for schedule in schedules:
        # A fire that cancels the run before has no reason to be skipped.
        may_skip = schedule["overlap"] != "cancel"
        wanted = {"queued", "skipped_overlap"} if may_skip else {"queued"}
        times = _fire_times(schedule["starts_at"], schedule["ends_at"])
        explained |= {(schedule["id"], at): wanted for at in times}
    return as_findings(
        {
            "fire times without an outcome": _shown(explained.keys() - statuses.keys()),
            "fires at no fire time": _shown(statuses.keys() - explained.keys()),
            "fire times that were not submitted": [
                f"{schedule} {at:%H:%M:%S.%f}: {status}"
                for (schedule, at), status in sorted(statuses.items())
                if (schedule, at) in explained and status not in explained[schedule, at]
            ],
        }
    )


def _shown(fires: Iterable[tuple[UUID, datetime]]) -> list[str]:
    return [f"{schedule} {at:%H:%M:%S.%f}" for schedule, at in sorted(fires)]


def _fire_times(starts_at: datetime, ends_at: datetime) -> list[datetime]:
    """Return the fire times of an active schedule, by counting."""
    return [starts_at + n * EVERY for n in range((ends_at - starts_at) // EVERY + 1)]


def _now(stack: ChaosStack) -> datetime:
    row: dict[str, Any] = dict(stack.deployment.one("SELECT clock() AS now"))
    now: datetime = row["now"]
    return now
