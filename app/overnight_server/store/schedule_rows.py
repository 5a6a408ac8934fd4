"""Schedules as their rows store them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from overnight_server.domain.fire_times import Cron, FireTimes, Interval, Once, Timing, due_time
from overnight_server.domain.ids import ScheduleId, UserId
from overnight_server.domain.schedules import CatchUp, CatchUpRule, Overlap


@dataclass(frozen=True)
class ScheduleRow:
    """One schedule; `now` is the instant of the database at which it was read."""

    id: ScheduleId
    user_id: UserId
    name: str
    said: str
    zone: str
    times: FireTimes
    jitter: timedelta
    overlap: Overlap
    catch_up: CatchUp
    catch_up_limit: int
    # The request: a task or a graph, with templates.
    template: Mapping[str, Any]
    is_graph: bool
    edition: int
    is_paused: bool
    next_fire_at: datetime | None
    next_due_at: datetime | None
    now: datetime

    def rule(self, grace: timedelta) -> CatchUpRule:
        """Return which of its missed fire times run."""
        return CatchUpRule(self.catch_up, self.catch_up_limit, grace)


def schedule_of(row: Mapping[str, Any]) -> ScheduleRow:
    """Return the schedule of a row of `lock_schedule` or `view_schedules`."""
    return ScheduleRow(
        id=ScheduleId(row["id"]),
        user_id=UserId(row["user_id"]),
        name=row["name"],
        said=row["said"],
        zone=row["zone"],
        times=FireTimes(timing_of(row), row["starts_at"], row["ends_at"]),
        jitter=timedelta(seconds=row["jitter_seconds"]),
        overlap=Overlap(row["overlap"]),
        catch_up=CatchUp(row["catch_up"]),
        catch_up_limit=row["catch_up_limit"],
        template=row["task"] if row["graph"] is None else row["graph"],
        is_graph=row["graph"] is not None,
        edition=row["edition"],
        is_paused=row["paused_at"] is not None,
        next_fire_at=row["next_fire_at"],
        next_due_at=row["next_due_at"],
        now=row["now"],
    )


def timing_of(row: Mapping[str, Any]) -> Timing:
    """Return the timing of a schedule's row."""
    if row["cron"] is not None:
        return Cron(row["cron"], row["zone"])
    if row["every_seconds"] is not None:
        return Interval(timedelta(seconds=row["every_seconds"]), row["anchor_at"])
    return Once(row["once_at"])


def timing_columns(timing: Timing) -> dict[str, object]:
    """Return the columns of a timing; `timing_of` is the inverse, together with the zone."""
    columns: dict[str, object] = dict.fromkeys(("cron", "every_seconds", "anchor_at", "once_at"))
    match timing:
        case Cron(expression, _):
            columns["cron"] = expression
        case Interval(every, anchor_at):
            columns |= {"every_seconds": int(every.total_seconds()), "anchor_at": anchor_at}
        case Once(at):
            columns["once_at"] = at
    return columns


def next_columns(
    schedule_id: ScheduleId, times: FireTimes, jitter: timedelta, now: datetime
) -> dict[str, datetime | None]:
    """Return the columns of the first fire time after an instant."""
    fire_at = times.first_after(now)
    if fire_at is None:
        return {"next_fire_at": None, "next_due_at": None}
    due = due_time(schedule_id, fire_at, jitter, times.first_after(fire_at))
    return {"next_fire_at": due.fire_at, "next_due_at": due.due_at}
