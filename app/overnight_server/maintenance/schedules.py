"""Fire due schedules: submit what they have for their fire times."""

from collections.abc import Callable
from functools import partial

from sqlalchemy import Connection

from overnight_server.control.fire_schedules import fire_due, fire_waiting
from overnight_server.domain.ids import ScheduleId, UserId, show_schedule
from overnight_server.fault_points import fault
from overnight_server.settings import Settings
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import DatabaseUnreachable, Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, emit

BATCH = 500
# A schedule that failed by an unexpected error is tried again after this many seconds.
RETRY_AFTER_SECONDS = 60
# The error on the row of such a schedule; the log has the error itself.
UNEXPECTED = "INTERNAL_ERROR: the fire time could not be submitted"

Fire = Callable[[Connection, UserId, ScheduleId, Settings], int]


def fire_schedules(db: Db, settings: Settings) -> int:
    """Fire due schedules, each in its own transaction; return how many fire times were handled.

    A schedule that fails keeps the error on its row and is tried again later; it does not affect
    the others. A pass that takes long stops, and the next one goes on.
    """
    params = {"limit": BATCH, "gap": RETRY_AFTER_SECONDS}
    searches = (
        (StatementCall("due_schedules", params), fire_due),
        (StatementCall("schedules_with_turn", params), fire_waiting),
    )
    limit = PassLimit()
    return sum(_fire_found(db, settings, search, fire, limit) for search, fire in searches)


def _fire_found(
    db: Db, settings: Settings, search: StatementCall, fire: Fire, limit: PassLimit
) -> int:
    """Fire what a statement finds, until it finds nothing or the pass has taken long."""
    total = 0
    while not limit.is_over:
        found = db.run_batch(search)
        if found:
            fault("schedules.after_search")
        handled = 0
        for row in found:
            handled += _fire(db, UserId(row.user_id), ScheduleId(row.id), settings, fire)
            if limit.is_over:
                break
        total += handled
        if not handled:
            break
    return total


def _fire(db: Db, user_id: UserId, schedule_id: ScheduleId, settings: Settings, fire: Fire) -> int:
    def work(tx: Connection) -> int:
        return fire(tx, user_id, schedule_id, settings)

    try:
        handled = db.atomically(work)
    except DatabaseUnreachable:
        raise
    except Exception as error:  # noqa: BLE001 - any error concerns this schedule only
        emit(LogEvent.SCHEDULE_STUCK, schedule_id=show_schedule(schedule_id), error=error)
        db.atomically(partial(_mark_failed, schedule_id=schedule_id))
        return 0
    if handled:
        fault("schedules.after_commit")
    return handled


def _mark_failed(tx: Connection, *, schedule_id: ScheduleId) -> None:
    params = {"schedule_id": schedule_id, "error": UNEXPECTED}
    tx.execute(statement("mark_schedule_failed"), params)
