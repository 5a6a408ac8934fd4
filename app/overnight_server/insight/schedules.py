"""Schedules: what fires when, and what became of each fire time."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from overnight.errors import ScheduleNotFound
from overnight.models.schedules import FireTime, Schedule, ScheduleFire
from overnight_server.domain.fire_times import Cron, Interval, Timing
from overnight_server.domain.ids import ScheduleId, UserId, show_dag, show_schedule, show_task
from overnight_server.domain.schedule_words import describe, time_in_words
from overnight_server.mask import mask_names
from overnight_server.store.db import Db
from overnight_server.store.schedule_rows import ScheduleRow, schedule_of
from overnight_server.store.statements import statement

NEXT_TIMES = 5
_TICK = timedelta(microseconds=1)


def list_schedules(
    db: Db,
    user_id: UserId,
    *,
    name: str | None = None,
    after: str | None = None,
    limit: int = 50,
    zone: str | None = None,
) -> list[Schedule]:
    """Return a user's schedules by name, each with its next five fire times in words.

    With `name` only the schedule of that name; with `after` those whose names follow that one. The
    words are in `zone`, or else in the zone of each schedule.
    """
    rows = _read_rows(db, user_id, name=name, after=after, limit=limit)
    return [_schedule(row, zone) for row in rows]


def get_schedule(
    db: Db, user_id: UserId, schedule_id: ScheduleId, *, zone: str | None = None
) -> Schedule:
    """Return one schedule; raise ScheduleNotFound if the user has no such schedule."""
    return _schedule(_one_row(db, user_id, schedule_id), zone)


def next_fire_times(
    db: Db, user_id: UserId, schedule_id: ScheduleId, *, count: int, zone: str | None = None
) -> list[FireTime]:
    """Return the next fire times of a schedule; none after its last one."""
    row = _one_row(db, user_id, schedule_id)
    return _next_times(schedule_of(row), count, zone)


def list_fires(
    db: Db,
    user_id: UserId,
    schedule_id: ScheduleId,
    *,
    status: str | None = None,
    before: datetime | None = None,
    limit: int = 50,
) -> list[ScheduleFire]:
    """Return the fire times of a schedule that have passed, the latest first."""
    _one_row(db, user_id, schedule_id)
    params = {"status": status, "fired_until": before, "fire_at": None, "limit": limit}
    return _read_fires(db, user_id, schedule_id, params)


def get_fire(db: Db, user_id: UserId, schedule_id: ScheduleId, fire_at: datetime) -> ScheduleFire:
    """Return one fire time of a schedule, which the caller knows to exist."""
    params = {"status": None, "fired_until": None, "fire_at": fire_at, "limit": 1}
    return _read_fires(db, user_id, schedule_id, params)[0]


def in_words(instants: Sequence[datetime], zone: str) -> list[FireTime]:
    """Return instants with their words in a zone."""
    return [FireTime(at=at, words=time_in_words(at, zone)) for at in instants]


def _next_times(schedule: ScheduleRow, count: int, zone: str | None) -> list[FireTime]:
    if schedule.next_fire_at is None:
        return []
    times = schedule.times.next_times(schedule.next_fire_at - _TICK, count)
    return in_words(times, zone or schedule.zone)


def _one_row(db: Db, user_id: UserId, schedule_id: ScheduleId) -> Mapping[str, Any]:
    rows = _read_rows(db, user_id, schedule_id=schedule_id)
    if not rows:
        raise ScheduleNotFound
    return rows[0]


def _read_rows(
    db: Db,
    user_id: UserId,
    *,
    schedule_id: ScheduleId | None = None,
    name: str | None = None,
    after: str | None = None,
    limit: int = 1,
) -> list[Mapping[str, Any]]:
    params = {
        "user_id": user_id,
        "schedule_id": schedule_id,
        "name": name,
        "after": after,
        "limit": limit,
    }
    found = db.atomically(
        lambda tx: tx.execute(statement("view_schedules"), params).mappings().all()
    )
    return [dict(row) for row in found]


def _schedule(row: Mapping[str, Any], zone: str | None) -> Schedule:
    schedule = schedule_of(row)
    timing = schedule.times.timing
    state = "ended" if schedule.next_fire_at is None else "active"
    return Schedule(
        **{
            **row,
            "id": show_schedule(schedule.id),
            "state": "paused" if schedule.is_paused else state,
            "when": schedule.said,
            "description": describe(timing),
            "kind": _kind(timing),
            "task": mask_names(row["task"]) if row["task"] is not None else None,
            "graph": mask_names(row["graph"]) if row["graph"] is not None else None,
            "next": _next_times(schedule, NEXT_TIMES, zone),
            "last": _last_fire(row),
        }
    )


def _last_fire(row: Mapping[str, Any]) -> ScheduleFire | None:
    if row["last_status"] is None:
        return None
    prefix = "last_"
    return _fire({name.removeprefix(prefix): row[name] for name in row if name.startswith(prefix)})


def _read_fires(
    db: Db, user_id: UserId, schedule_id: ScheduleId, params: Mapping[str, object]
) -> list[ScheduleFire]:
    values = {"user_id": user_id, "schedule_id": schedule_id, **params}
    rows = db.atomically(
        lambda tx: tx.execute(statement("view_schedule_fires"), values).mappings().all()
    )
    return [_fire(dict(row)) for row in rows]


def _fire(row: Mapping[str, Any]) -> ScheduleFire:
    task_id = None if row["task_id"] is None else show_task(row["task_id"])
    dag_id = None if row["dag_id"] is None else show_dag(row["dag_id"])
    return ScheduleFire(
        fire_time=row["fire_at"],
        kind=row["kind"],
        status=row["status"],
        reason=row["reason"],
        task_id=task_id,
        dag_id=dag_id,
        last_queue_id=task_id or dag_id,
        is_running=row["is_running"],
        decided_at=row["decided_at"],
    )


def _kind(timing: Timing) -> str:
    match timing:
        case Cron():
            return "cron"
        case Interval():
            return "interval"
        case _:
            return "once"
