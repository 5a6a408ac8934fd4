"""Letting in the graphs that the end of another sets off."""

from datetime import timedelta
from functools import partial

from sqlalchemy import Connection

from overnight.errors import Refused
from overnight_server.domain.ids import TriggerId, UserId, show_trigger
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps
from overnight_server.intake.triggers import fire_trigger
from overnight_server.store.db import DatabaseUnreachable, Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import Event, emit

BATCH = 500
# A graph that a cap keeps out is tried again after this long.
PATIENCE = timedelta(minutes=1)
# What is told of an error that is nobody's refusal; the log has more.
UNFORESEEN = "INTERNAL_ERROR: the graph could not be let in"


def fire_due(db: Db, caps: Caps) -> int:
    """Fire every due trigger, each in a transaction of its own; return how many graphs came in.

    One that is refused, or fails, says so on its row, is tried again after a while, and keeps
    nobody else waiting.
    """
    db.atomically(lambda tx: tx.execute(statement("make_lone_task_triggers_due")))
    due = db.atomically(_due)
    return sum(_fired(db, user_id, trigger_id, caps) for user_id, trigger_id in due)


def _due(tx: Connection) -> list[tuple[UserId, TriggerId]]:
    named = {"limit": BATCH, "gap": PATIENCE.total_seconds()}
    rows = tx.execute(statement("due_triggers"), named)
    return [(UserId(row.user_id), TriggerId(row.id)) for row in rows]


def _fired(db: Db, user_id: UserId, trigger_id: TriggerId, caps: Caps) -> bool:
    try:
        made = _fire(db, user_id, trigger_id, caps)
    except DatabaseUnreachable:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this trigger's alone
        emit(Event.TRIGGER_STUCK, trigger_id=show_trigger(trigger_id), error=error)
        return False
    fault("intake.after_commit")
    return made


def _fire(db: Db, user_id: UserId, trigger_id: TriggerId, caps: Caps) -> bool:
    try:
        return db.atomically(lambda tx: fire_trigger(tx, user_id, trigger_id, caps)) is not None
    except DatabaseUnreachable:
        raise
    except Refused as refusal:
        reason = f"{refusal.code}: {refusal.message}"
        db.atomically(partial(_note, trigger_id=trigger_id, reason=reason))
        return False
    except Exception:
        # Tried again like any other, but not with every pass.
        db.atomically(partial(_note, trigger_id=trigger_id, reason=UNFORESEEN))
        raise


def _note(tx: Connection, *, trigger_id: TriggerId, reason: str) -> None:
    tx.execute(statement("mark_trigger_refused"), {"trigger_id": trigger_id, "reason": reason})
