"""Fire due triggers: submit the graphs that wait for the end of another graph."""

from datetime import timedelta
from functools import partial

from sqlalchemy import Connection

from overnight.errors import Refused
from overnight_server.domain.ids import TriggerId, UserId, show_trigger
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps
from overnight_server.intake.triggers import fire_trigger
from overnight_server.store.db import DatabaseUnreachable, Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, emit

BATCH = 500
# A trigger whose graph was refused is tried again after this time.
RETRY_AFTER = timedelta(minutes=1)
# The reason on the row of a trigger that failed by an unexpected error; the log has the error.
UNEXPECTED = "INTERNAL_ERROR: the graph could not be submitted"


def fire_due(db: Db, caps: Caps) -> int:
    """Fire due triggers, each in its own transaction; return how many graphs were submitted.

    A trigger that is refused or fails keeps the reason on its row and is tried again later; it does
    not affect the others. A pass that takes long stops, and the next one goes on.
    """
    db.atomically(lambda tx: tx.execute(statement("make_lone_task_triggers_due")))
    due = db.atomically(_due_triggers)
    limit, fired = PassLimit(), 0
    for user_id, trigger_id in due:
        fired += _fire(db, user_id, trigger_id, caps)
        if limit.is_over:
            break
    return fired


def _due_triggers(tx: Connection) -> list[tuple[UserId, TriggerId]]:
    params = {"limit": BATCH, "gap": RETRY_AFTER.total_seconds()}
    rows = tx.execute(statement("due_triggers"), params)
    return [(UserId(row.user_id), TriggerId(row.id)) for row in rows]


def _fire(db: Db, user_id: UserId, trigger_id: TriggerId, caps: Caps) -> bool:
    try:
        fired = _submit_graph(db, user_id, trigger_id, caps)
    except DatabaseUnreachable:
        raise
    except Exception as error:  # noqa: BLE001 - any error concerns this trigger only
        emit(LogEvent.TRIGGER_STUCK, trigger_id=show_trigger(trigger_id), error=error)
        return False
    fault("intake.after_commit")
    return fired


def _submit_graph(db: Db, user_id: UserId, trigger_id: TriggerId, caps: Caps) -> bool:
    try:
        return db.atomically(lambda tx: fire_trigger(tx, user_id, trigger_id, caps)) is not None
    except DatabaseUnreachable:
        raise
    except Refused as refusal:
        reason = f"{refusal.code}: {refusal.message}"
        db.atomically(partial(_mark_refused, trigger_id=trigger_id, reason=reason))
        return False
    except Exception:
        # The trigger is tried again later, as after a refusal, but not with every pass.
        db.atomically(partial(_mark_refused, trigger_id=trigger_id, reason=UNEXPECTED))
        raise


def _mark_refused(tx: Connection, *, trigger_id: TriggerId, reason: str) -> None:
    tx.execute(statement("mark_trigger_refused"), {"trigger_id": trigger_id, "reason": reason})
