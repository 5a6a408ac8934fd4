"""Fire a schedule: submit its task or graph for each fire time that is due, each exactly once.

A fire time, its outcome and what it submits are one transaction, which holds the lane of the user
and the row of the schedule. Whoever comes second finds that nothing is due any more.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from pydantic import ValidationError
from sqlalchemy import Connection
from sqlalchemy.exc import DataError, IntegrityError

from overnight.errors import MonthlyLimitReached, QueueFull, Refused, TooManyPending
from overnight_server.control.cancel import cancel_tasks
from overnight_server.domain.fire_times import DueTime, due_times
from overnight_server.domain.graphs import STOPPED
from overnight_server.domain.ids import (
    DagId,
    ScheduleId,
    TaskId,
    UserId,
    show_dag,
    show_schedule,
    show_task,
)
from overnight_server.domain.notifications import NotificationKind
from overnight_server.domain.schedules import (
    CatchUp,
    FireKind,
    FirePlan,
    FireStatus,
    Overlap,
    plan_fires,
)
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewGraph
from overnight_server.intake.schedule_templates import filled, graph_of
from overnight_server.intake.submit import insert_graph
from overnight_server.outcome.settle import resolve_cancelled
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.after_commit import log_after_commit, savepoint
from overnight_server.store.notifications import record_notification
from overnight_server.store.schedule_rows import ScheduleRow, schedule_of
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent

# How many due fire times one transaction handles; the user's lane is locked meanwhile.
BATCH = 500
# How many fire times of a schedule may wait for the run before; later ones are skipped.
MOST_WAITING = 100
# Errors of what is submitted: they concern this fire time, and not the schedule's later ones.
INVALID = (
    Refused,
    ValueError,
    TypeError,
    ArithmeticError,
    RecursionError,
    DataError,
    IntegrityError,
)


@dataclass(frozen=True)
class Outcome:
    """What became of a fire time, and what it submitted."""

    status: FireStatus
    reason: str | None = None
    task_id: TaskId | None = None
    dag_id: DagId | None = None


def lock_schedule(tx: Connection, user_id: UserId, schedule_id: ScheduleId) -> ScheduleRow | None:
    """Lock a user's lane and one of the user's schedules; None if the user has no such one."""
    lanes.lock(tx, [user_id])
    params = {"schedule_id": schedule_id, "user_id": user_id}
    row = tx.execute(statement("lock_schedule"), params).mappings().one_or_none()
    return None if row is None else schedule_of(dict(row))


def fire_due(tx: Connection, user_id: UserId, schedule_id: ScheduleId, settings: Settings) -> int:
    """Decide about the fire times of a schedule that are due; return how many there were.

    At most `BATCH` of them: after a long downtime the caller calls it again.
    """
    schedule = lock_schedule(tx, user_id, schedule_id)
    if schedule is None or _is_disabled(tx, user_id):
        return 0
    return settle_due(tx, schedule, settings)


def settle_due(tx: Connection, schedule: ScheduleRow, settings: Settings) -> int:
    """Do what `fire_due` does with a schedule that is locked."""
    if schedule.next_fire_at is None:
        return 0
    due, following = _due_times(schedule, schedule.next_fire_at)
    if not due:
        return 0
    grace = timedelta(seconds=settings.schedule_grace)
    rule = schedule.rule(grace)
    if schedule.is_paused:
        plan = FirePlan([time.fire_at for time in due], [], following)
        _record(tx, schedule, plan.skipped, FireStatus.SKIPPED_PAUSED)
    else:
        plan = plan_fires(due, following, schedule.now, rule)
        missed = _record(tx, schedule, plan.skipped, FireStatus.SKIPPED_MISSED)
        _tell_missed(tx, schedule, missed)
        late = {time.fire_at for time in due if time.due_at < schedule.now - grace}
        _run(tx, schedule, plan.runs, late, settings)
    _advance(tx, schedule, plan.next_time)
    fault("schedules.before_commit")
    return len(plan.skipped) + len(plan.runs)


def skip_past(
    tx: Connection, user_id: UserId, schedule_id: ScheduleId, reason: str
) -> list[datetime]:
    """Record fire times that are due or wait as missed, because they may have run; return them.

    At most `BATCH` that are due: the caller calls it again until it returns none. A person may run
    them with a backfill. The user is told once per call.
    """
    schedule = lock_schedule(tx, user_id, schedule_id)
    if schedule is None:
        return []
    skipped = [fire_at for fire_at, _ in _waiting(tx, schedule)]
    for fire_at in skipped:
        _write_outcome(tx, schedule, fire_at, Outcome(FireStatus.SKIPPED_MISSED, reason))
    if schedule.next_fire_at is not None and not schedule.is_paused:
        due, following = _due_times(schedule, schedule.next_fire_at)
        passed = [time.fire_at for time in due]
        skipped += _record(tx, schedule, passed, FireStatus.SKIPPED_MISSED, reason)
        _advance(tx, schedule, following)
    if skipped:
        _tell(tx, schedule, skipped[-1], Outcome(FireStatus.SKIPPED_MISSED, reason))
    return skipped


def fire_waiting(
    tx: Connection, user_id: UserId, schedule_id: ScheduleId, settings: Settings
) -> int:
    """Submit the first fire time that waits, if no run of the schedule is left; return 1 if so."""
    schedule = lock_schedule(tx, user_id, schedule_id)
    if schedule is None or _is_disabled(tx, user_id) or _is_running(tx, schedule):
        return 0
    for fire_at, kind in _waiting(tx, schedule):
        if schedule.is_paused and kind is not FireKind.BACKFILL:
            continue
        outcome = _submit(tx, schedule, fire_at, kind, settings)
        if kind is FireKind.BACKFILL and _is_temporary(outcome.status):
            # A person asked for it, so it waits until the limit allows it.
            _delay(tx, schedule, fire_at, outcome)
            return 0
        settle(tx, schedule, fire_at, outcome)
        tx.execute(statement("clear_schedule_error"), {"schedule_id": schedule.id})
        fault("schedules.before_commit")
        return 1
    return 0


def submit_now(
    tx: Connection, schedule: ScheduleRow, fire_at: datetime, settings: Settings
) -> Outcome:
    """Submit what a person runs now; raise what a submit raises, without a change."""
    graph = _graph(schedule, fire_at, FireKind.MANUAL, settings)
    submitted = insert_graph(tx, schedule.user_id, graph, Caps.of(settings))[0]
    task_id = None if schedule.is_graph else submitted.task_id
    return Outcome(FireStatus.QUEUED, None, task_id, submitted.dag_id)


def settle(tx: Connection, schedule: ScheduleRow, fire_at: datetime, outcome: Outcome) -> None:
    """Write the outcome of a fire time that has waited until now; log it, and tell its user."""
    _write_outcome(tx, schedule, fire_at, outcome)
    shown = {
        "schedule_id": show_schedule(schedule.id),
        "fire_time": _utc(fire_at),
        "status": outcome.status.value,
    }
    if outcome.dag_id is not None:
        queue_id = show_task(outcome.task_id) if outcome.task_id else show_dag(outcome.dag_id)
        log_after_commit(tx, LogEvent.SCHEDULE_FIRED, **shown, queue_id=queue_id)
    else:
        log_after_commit(tx, LogEvent.SCHEDULE_SKIPPED, **shown, reason=outcome.reason)
        _tell(tx, schedule, fire_at, outcome)


def _write_outcome(
    tx: Connection, schedule: ScheduleRow, fire_at: datetime, outcome: Outcome
) -> None:
    tx.execute(
        statement("settle_fire"),
        {
            "schedule_id": schedule.id,
            "fire_at": fire_at,
            "status": outcome.status,
            "reason": outcome.reason,
            "task_id": outcome.task_id,
            "dag_id": outcome.dag_id,
        },
    )


def _due_times(
    schedule: ScheduleRow, next_fire_at: datetime
) -> tuple[Sequence[DueTime], DueTime | None]:
    """Return the fire times that are due, at most `BATCH`, and the one after them."""
    return due_times(
        schedule.times,
        schedule_id=schedule.id,
        fire_at=next_fire_at,
        jitter=schedule.jitter,
        now=schedule.now,
        limit=BATCH,
    )


def _advance(tx: Connection, schedule: ScheduleRow, next_time: DueTime | None) -> None:
    tx.execute(
        statement("advance_schedule"),
        {
            "schedule_id": schedule.id,
            "next_fire_at": None if next_time is None else next_time.fire_at,
            "next_due_at": None if next_time is None else next_time.due_at,
        },
    )


def _run(
    tx: Connection,
    schedule: ScheduleRow,
    runs: Sequence[datetime],
    late: Collection[datetime],
    settings: Settings,
) -> None:
    """Submit fire times in their order, as far as the run before allows it."""
    for fire_at in _record(tx, schedule, runs, FireStatus.WAITING):
        catches_up = schedule.catch_up is CatchUp.ALL and fire_at in late
        is_behind = _is_running(tx, schedule) or bool(_waiting(tx, schedule, before=fire_at))
        if is_behind:
            if catches_up or schedule.overlap is Overlap.QUEUE:
                if len(_waiting(tx, schedule)) > MOST_WAITING:
                    reason = f"{MOST_WAITING} fire times wait already"
                    settle(tx, schedule, fire_at, Outcome(FireStatus.SKIPPED_OVERLAP, reason))
                continue
            if schedule.overlap is Overlap.SKIP:
                reason = "the run before is not over"
                settle(tx, schedule, fire_at, Outcome(FireStatus.SKIPPED_OVERLAP, reason))
                continue
        kind = FireKind.SCHEDULED
        outcome = _submit(tx, schedule, fire_at, kind, settings, cancels=is_behind)
        settle(tx, schedule, fire_at, outcome)


def _submit(
    tx: Connection,
    schedule: ScheduleRow,
    fire_at: datetime,
    kind: FireKind,
    settings: Settings,
    *,
    cancels: bool = False,
) -> Outcome:
    """Submit a fire time in a savepoint; an error of what is submitted is its outcome.

    With `cancels` the runs before are cancelled, but only if this one is submitted.
    """
    try:
        with savepoint(tx):
            tx.execute(statement("set_actor"), {"actor": f"cron:{schedule.name}"})
            if cancels:
                _cancel_runs(tx, schedule)
            graph = _graph(schedule, fire_at, kind, settings)
            submitted = insert_graph(tx, schedule.user_id, graph, Caps.of(settings))[0]
    except (QueueFull, TooManyPending) as limit:
        return Outcome(FireStatus.SKIPPED_QUEUE_FULL, limit.message)
    except MonthlyLimitReached as limit:
        return Outcome(FireStatus.SKIPPED_MONTHLY_LIMIT, limit.message)
    except INVALID as error:
        return Outcome(FireStatus.FAILED, _error_text(error))
    task_id = None if schedule.is_graph else submitted.task_id
    return Outcome(FireStatus.QUEUED, None, task_id, submitted.dag_id)


def _graph(
    schedule: ScheduleRow, fire_at: datetime, kind: FireKind, settings: Settings
) -> NewGraph:
    request = filled(
        schedule.template,
        is_graph=schedule.is_graph,
        name=schedule.name,
        schedule_id=schedule.id,
        zone=schedule.zone,
        times=schedule.times,
        fire_at=fire_at,
        kind=kind,
    )
    return graph_of(request, settings, is_graph=schedule.is_graph, name=schedule.name)


def _record(
    tx: Connection,
    schedule: ScheduleRow,
    fire_times: Sequence[datetime],
    status: FireStatus,
    reason: str | None = None,
) -> list[datetime]:
    """Insert rows for fire times; return those that had none, in order."""
    if not fire_times:
        return []
    params = {
        "schedule_id": schedule.id,
        "user_id": schedule.user_id,
        "kind": FireKind.SCHEDULED,
        "status": status,
        "reason": reason,
        "fire_times": list(fire_times),
    }
    return sorted(tx.execute(statement("record_fires"), params).scalars())


def _waiting(
    tx: Connection, schedule: ScheduleRow, *, before: datetime | None = None
) -> list[tuple[datetime, FireKind]]:
    params = {"schedule_id": schedule.id, "limit": MOST_WAITING + 1}
    rows = tx.execute(statement("waiting_fires"), params)
    return [
        (row.fire_at, FireKind(row.kind)) for row in rows if before is None or row.fire_at < before
    ]


def _is_running(tx: Connection, schedule: ScheduleRow) -> bool:
    """Return whether something that the schedule has submitted has not ended."""
    params = {"schedule_id": schedule.id}
    tx.execute(statement("close_ended_fires"), params)
    return bool(tx.execute(statement("is_run_open"), params).scalar_one())


def _cancel_runs(tx: Connection, schedule: ScheduleRow) -> None:
    """Cancel what the schedule has submitted; what runs is requested to stop."""
    params = {"schedule_id": schedule.id}
    tasks: list[UUID] = list(tx.execute(statement("open_runs"), params).scalars())
    actor = f"cron:{schedule.name}"
    done = cancel_tasks(tx, schedule.user_id, tasks, actor=actor, reason=STOPPED)
    resolve_cancelled(tx, done.cancelled)


def _is_disabled(tx: Connection, user_id: UserId) -> bool:
    return bool(tx.execute(statement("is_user_disabled"), {"user_id": user_id}).scalar_one())


def _is_temporary(status: FireStatus) -> bool:
    return status in {FireStatus.SKIPPED_QUEUE_FULL, FireStatus.SKIPPED_MONTHLY_LIMIT}


def _delay(tx: Connection, schedule: ScheduleRow, fire_at: datetime, outcome: Outcome) -> None:
    params = {"schedule_id": schedule.id, "fire_at": fire_at, "reason": outcome.reason}
    tx.execute(statement("delay_fire"), params)


def _tell(tx: Connection, schedule: ScheduleRow, fire_at: datetime, outcome: Outcome) -> None:
    """Record the notification about a fire time that submitted nothing."""
    failed = outcome.status is FireStatus.FAILED
    record_notification(
        tx,
        NotificationKind.SCHEDULE_FAILED if failed else NotificationKind.SCHEDULE_SKIPPED,
        user_id=schedule.user_id,
        subject=f"{schedule.id}:{_utc(fire_at)}",
        detail={
            "title": schedule.name,
            "status": outcome.status.value,
            "fire_time": _utc(fire_at),
            "reason": outcome.reason,
        },
    )


def _tell_missed(tx: Connection, schedule: ScheduleRow, missed: Sequence[datetime]) -> None:
    """Record one notification about all fire times that were missed in one downtime."""
    if missed:
        count = len(missed)
        reason = f"{count} fire times passed while no schedule was looked at"
        _tell(tx, schedule, missed[-1], Outcome(FireStatus.SKIPPED_MISSED, reason))


def _utc(instant: datetime) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}"


def _error_text(error: Exception) -> str:
    """Return what is wrong with a submit, without the values that its user wrote."""
    if isinstance(error, Refused):
        return f"{error.code}: {error.message}"
    if isinstance(error, ValidationError):
        return "INVALID_REQUEST: the task is not valid"
    return "INVALID_REQUEST: a value cannot be stored by the database"
