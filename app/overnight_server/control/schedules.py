"""Acts on schedules: create, edit, pause, resume, delete, run now, and backfill a range."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import Connection, func, select

from overnight.errors import InvalidRequest, PreconditionFailed, ScheduleNotFound
from overnight.models.field_errors import validate
from overnight.models.schedules import (
    MOST_BACKFILL,
    Backfill,
    BackfillRequest,
    ScheduleCreate,
    ScheduleEdit,
)
from overnight_server.control.edit import ANY
from overnight_server.control.fire_schedules import (
    lock_schedule,
    settle,
    settle_due,
    submit_now,
)
from overnight_server.domain.fire_times import FireTimes, Interval, Timing
from overnight_server.domain.ids import ScheduleId, UserId, new_schedule_id
from overnight_server.domain.schedule_words import parse_when
from overnight_server.domain.schedules import FireKind
from overnight_server.fault_points import fault
from overnight_server.insight.schedules import in_words
from overnight_server.intake import execution
from overnight_server.intake.caps import Caps, check_graph_size
from overnight_server.intake.schedule_templates import filled, graph_of
from overnight_server.intake.task_rows import as_json
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.schedule_rows import (
    ScheduleRow,
    next_columns,
    timing_columns,
)
from overnight_server.store.statements import statement

# A user's schedules are listed and looked at as a whole.
MOST_SCHEDULES = 1_000
TICK = timedelta(microseconds=1)
_NEVER = "it has no fire time from now on"
_FIELDS = frozenset(ScheduleCreate.model_fields) - {"paused"}


@dataclass(frozen=True)
class Definition:
    """A checked request for a schedule: its timing, and the first request that it will submit."""

    body: ScheduleCreate
    timing: Timing
    next: Mapping[str, datetime | None]
    first_request: Mapping[str, Any]

    @property
    def times(self) -> FireTimes:
        """The fire times."""
        return FireTimes(self.timing, self.body.starts_at, self.body.ends_at)

    def next_times(self, count: int) -> list[datetime]:
        """Return the next fire times."""
        first = self.next["next_fire_at"]
        return [] if first is None else self.times.next_times(first - TICK, count)


def preview_schedule(
    db: Db, user_id: UserId, body: ScheduleCreate, settings: Settings
) -> Definition:
    """Return what a new schedule would be; raise what its creation would raise.

    Its name may be that of an existing schedule, whose change is previewed so.
    """
    schedule_id = new_schedule_id()

    def work(tx: Connection) -> Definition:
        return _define(tx, user_id, schedule_id, body, settings)

    return db.atomically(work)


def add_schedule(
    db: Db, user_id: UserId, body: ScheduleCreate, settings: Settings, *, actor: str
) -> ScheduleId:
    """Create a schedule and return its id.

    Raises InvalidRequest for a time that is not understood or has passed, for a template that would
    not be accepted at the first fire time, and for a name that another schedule of the user has.
    """
    schedule_id = new_schedule_id()

    def work(tx: Connection) -> None:
        lanes.lock_for_actor(tx, user_id, actor)
        _check_name(tx, user_id, schedule_id, body.name)
        definition = _define(tx, user_id, schedule_id, body, settings)
        params = {**_columns(user_id, schedule_id, definition), "actor": actor}
        tx.execute(statement("add_schedule"), {**params, "paused": body.paused})

    db.atomically(work)
    return schedule_id


def edit_schedule(
    db: Db,
    user_id: UserId,
    schedule_id: ScheduleId,
    changes: ScheduleEdit,
    settings: Settings,
    *,
    editions: Collection[str],
    actor: str,
) -> None:
    """Change a schedule, if its edition is one of `editions`.

    If its time or zone changes, its next fire time is found anew: words such as `in 2 hours` count
    from now then, but not if they are what the schedule has. Fire times that are due already happen
    as before the change. Raises ScheduleNotFound,
    PreconditionFailed, and what `add_schedule` raises.
    """
    fields = {name: getattr(changes, name) for name in changes.model_fields_set}
    if not fields:
        legal = f"at least one of {', '.join(sorted(_FIELDS))}"
        raise InvalidRequest("body", "changes nothing", legal=legal)

    def work(tx: Connection) -> None:
        schedule = _settled(tx, user_id, schedule_id, settings)
        if ANY not in editions and str(schedule.edition) not in editions:
            raise PreconditionFailed
        tx.execute(statement("set_actor"), {"actor": actor})
        body = validate(ScheduleCreate, _merged(schedule, fields))
        _check_name(tx, user_id, schedule_id, body.name)
        is_same = (body.when, body.zone) == (schedule.said, schedule.zone)
        kept = schedule if is_same else None
        definition = _define(tx, user_id, schedule_id, body, settings, kept=kept)
        tx.execute(statement("edit_schedule"), _columns(user_id, schedule_id, definition))

    db.atomically(work)


def pause_schedule(
    db: Db, user_id: UserId, schedule_id: ScheduleId, settings: Settings, *, actor: str
) -> None:
    """Let the fire times of a schedule pass without a submit, until it is resumed."""
    _set_paused(db, user_id, schedule_id, settings, paused=True, actor=actor)


def resume_schedule(
    db: Db, user_id: UserId, schedule_id: ScheduleId, settings: Settings, *, actor: str
) -> None:
    """Let a schedule fire again, from its next fire time on."""
    _set_paused(db, user_id, schedule_id, settings, paused=False, actor=actor)


def delete_schedule(db: Db, user_id: UserId, schedule_id: ScheduleId, *, actor: str) -> None:
    """Delete a schedule: it does not fire again; what it has submitted goes on."""

    def work(tx: Connection) -> None:
        lanes.lock_for_actor(tx, user_id, actor)
        _locked(tx, user_id, schedule_id)
        params = {"schedule_id": schedule_id, "user_id": user_id}
        tx.execute(statement("delete_schedule"), params)

    db.atomically(work)


def run_now(
    db: Db,
    user_id: UserId,
    schedule_id: ScheduleId,
    settings: Settings,
    *,
    actor: str,
    key: str | None = None,
) -> tuple[datetime, bool]:
    """Submit now what a schedule submits, also if it is paused or its run before is not over.

    Return the fire time, and whether it is new: the same key again returns the first one. Raises
    what a submit raises; then nothing is recorded.
    """

    def work(tx: Connection) -> tuple[datetime, bool]:
        schedule = _locked(tx, user_id, schedule_id)
        if key is not None:
            params = {"schedule_id": schedule_id, "key": key}
            known = tx.execute(statement("fire_by_key"), params).scalar_one_or_none()
            if known is not None:
                return known, False
        tx.execute(statement("set_actor"), {"actor": actor})
        fire_at = _free_instant(schedule)
        params = {"schedule_id": schedule_id, "user_id": user_id, "fire_at": fire_at, "key": key}
        tx.execute(statement("record_manual_fire"), params)
        settle(tx, schedule, fire_at, submit_now(tx, schedule, fire_at, settings))
        fault("schedules.before_commit")
        return fire_at, True

    return db.atomically(work)


def backfill(
    db: Db, user_id: UserId, schedule_id: ScheduleId, body: BackfillRequest, *, actor: str
) -> Backfill:
    """Let the past fire times of a range run, one after the other; a preview changes nothing.

    Those that were submitted before, or wait already, are left out. Raises InvalidRequest for a
    range that is empty, reaches into the future, or has too many fire times.
    """

    def work(tx: Connection) -> Backfill:
        schedule = _locked(tx, user_id, schedule_id)
        fire_times = _range(schedule, body)
        tx.execute(statement("set_actor"), {"actor": actor})
        params = {"schedule_id": schedule_id, "user_id": user_id, "fire_times": fire_times}
        with tx.begin_nested() as savepoint:
            added = sorted(tx.execute(statement("repeat_fires"), params).scalars())
            if body.preview:
                savepoint.rollback()
        return Backfill(
            total=len(fire_times),
            added=len(added),
            present=len(fire_times) - len(added),
            preview=body.preview,
            fire_times=in_words(added, schedule.zone),
        )

    return db.atomically(work)


def _define(
    tx: Connection,
    user_id: UserId,
    schedule_id: ScheduleId,
    body: ScheduleCreate,
    settings: Settings,
    *,
    kept: ScheduleRow | None = None,
) -> Definition:
    """Check a request; `kept` is the schedule itself if its timing does not change."""
    lane = lanes.read(tx, user_id)
    if (body.task is None) == (body.graph is None):
        what = "is missing" if body.task is None else "cannot be given with a graph"
        raise InvalidRequest("task", what, legal="either a task or a graph")
    now: datetime = tx.execute(select(func.clock())).scalar_one()
    timing = kept.times.timing if kept else parse_when(body.when, body.zone, now)
    times = FireTimes(_anchored(timing, body.starts_at), body.starts_at, body.ends_at)
    jitter = timedelta(seconds=body.jitter_seconds)
    # A fire time that has come, but is delayed by its jitter, is kept.
    pending = kept.next_fire_at if kept else None
    following = next_columns(schedule_id, times, jitter, now if pending is None else pending - TICK)
    first = following["next_fire_at"]
    template = body.task if body.graph is None else body.graph
    request = filled(
        template or {},
        is_graph=body.graph is not None,
        name=body.name,
        schedule_id=schedule_id,
        zone=body.zone,
        times=times,
        fire_at=first or now,
        kind=FireKind.SCHEDULED,
    )
    graph = graph_of(request, settings, is_graph=body.graph is not None, name=body.name)
    check_graph_size(lane, graph.size, Caps.of(settings), field_name="graph.tasks")
    execution.resolve(tx, user_id, graph.tasks)
    if first is None:
        raise InvalidRequest("when", _NEVER, legal="a time before ends_at, and after now")
    return Definition(body, times.timing, following, request)


def _check_name(tx: Connection, user_id: UserId, schedule_id: ScheduleId, name: str) -> None:
    """Raise InvalidRequest if another schedule of the user has this name, or if there are many."""
    params = {"user_id": user_id, "schedule_id": schedule_id, "name": name}
    existing = tx.execute(statement("count_schedules"), params).one()
    if existing.of_name:
        legal = "a name that none of your other schedules has"
        raise InvalidRequest("name", f"{name!r} is taken", legal=legal)
    if existing.total >= MOST_SCHEDULES:
        legal = f"at most {MOST_SCHEDULES}; delete one first"
        raise InvalidRequest("name", f"you have {existing.total} schedules", legal=legal)


def _anchored(timing: Timing, starts_at: datetime | None) -> Timing:
    """Let an interval count from the first instant at which it may fire."""
    if isinstance(timing, Interval) and starts_at is not None:
        return replace(timing, anchor_at=starts_at)
    return timing


def _columns(user_id: UserId, schedule_id: ScheduleId, definition: Definition) -> dict[str, object]:
    body = definition.body
    return {
        "schedule_id": schedule_id,
        "user_id": user_id,
        "name": body.name,
        "said": body.when,
        **timing_columns(definition.timing),
        "zone": body.zone,
        "starts_at": body.starts_at,
        "ends_at": body.ends_at,
        "jitter_seconds": body.jitter_seconds,
        "overlap": body.overlap,
        "catch_up": body.catch_up,
        "catch_up_limit": body.catch_up_limit,
        "task": None if body.task is None else as_json(body.task),
        "graph": None if body.graph is None else as_json(body.graph),
        **definition.next,
    }


def _merged(schedule: ScheduleRow, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schedule as its request, with changes; a new graph replaces a task, and back."""
    template = "graph" if schedule.is_graph else "task"
    fields: dict[str, Any] = {
        "name": schedule.name,
        "when": schedule.said,
        "zone": schedule.zone,
        template: dict(schedule.template),
        "starts_at": schedule.times.starts_at,
        "ends_at": schedule.times.ends_at,
        "jitter_seconds": int(schedule.jitter.total_seconds()),
        "overlap": schedule.overlap.value,
        "catch_up": schedule.catch_up.value,
        "catch_up_limit": schedule.catch_up_limit,
    }
    if {"task", "graph"} & {name for name, value in changes.items() if value is not None}:
        del fields[template]
    clearable = {"starts_at", "ends_at"}
    return fields | {
        name: value for name, value in changes.items() if value is not None or name in clearable
    }


def _settled(
    tx: Connection, user_id: UserId, schedule_id: ScheduleId, settings: Settings
) -> ScheduleRow:
    """Lock a schedule and decide about what is due, so that a change concerns later times only."""
    schedule = _locked(tx, user_id, schedule_id)
    while settle_due(tx, schedule, settings):
        schedule = _locked(tx, user_id, schedule_id)
    return schedule


def _locked(tx: Connection, user_id: UserId, schedule_id: ScheduleId) -> ScheduleRow:
    schedule = lock_schedule(tx, user_id, schedule_id)
    if schedule is None:
        raise ScheduleNotFound
    return schedule


def _set_paused(
    db: Db,
    user_id: UserId,
    schedule_id: ScheduleId,
    settings: Settings,
    *,
    paused: bool,
    actor: str,
) -> None:
    def work(tx: Connection) -> None:
        _settled(tx, user_id, schedule_id, settings)
        tx.execute(statement("set_actor"), {"actor": actor})
        params = {"schedule_id": schedule_id, "user_id": user_id, "paused": paused}
        tx.execute(statement("pause_schedule"), params)

    db.atomically(work)


def _free_instant(schedule: ScheduleRow) -> datetime:
    """Return the instant of a run by hand: now, never one at which the schedule fires itself."""
    instant = schedule.now
    next_at = schedule.next_fire_at
    return instant + TICK if instant == next_at else instant


def _range(schedule: ScheduleRow, body: BackfillRequest) -> list[datetime]:
    """Return the fire times of a range; those that are yet to come are not among them."""
    if body.since >= body.until:
        raise InvalidRequest("until", "is not after since", legal="a later instant")
    # Fire times from next_fire_at on are those of the sweep.
    end = min(schedule.next_fire_at or schedule.now, schedule.now)
    if body.until > schedule.now:
        raise InvalidRequest("until", "lies in the future", legal="an instant that has passed")
    times = FireTimes(schedule.times.timing)
    found = list(islice(times.between(body.since, min(body.until, end)), MOST_BACKFILL + 1))
    if len(found) > MOST_BACKFILL:
        legal = f"at most {MOST_BACKFILL}"
        raise InvalidRequest("since", "the range has too many fire times", legal=legal)
    return found
