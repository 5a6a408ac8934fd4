"""Letting in the graphs that the end of another sets off."""

from datetime import timedelta
from functools import partial

from sqlalchemy import Connection

from app.domain.errors import Refused
from app.domain.ids import TriggerId, UserId
from app.faults import fault
from app.intake.submit import Caps
from app.intake.triggers import fire
from app.store.db import Db
from app.store.statements import statement

BATCH = 500
# A graph that a cap keeps out is tried again after this long.
PATIENCE = timedelta(minutes=1)


def fire_due(db: Db, caps: Caps) -> int:
    """Fire every due trigger, each in a transaction of its own; return how many graphs came in.

    One that is refused says why on its row, and keeps nobody else waiting.
    """
    db.atomically(lambda tx: tx.execute(statement("set_off_lone")))
    due = db.atomically(_due)
    return sum(_fired(db, user_id, trigger_id, caps) for user_id, trigger_id in due)


def _due(tx: Connection) -> list[tuple[UserId, TriggerId]]:
    named = {"limit": BATCH, "gap": PATIENCE.total_seconds()}
    rows = tx.execute(statement("due_triggers"), named)
    return [(UserId(row.user_id), TriggerId(row.id)) for row in rows]


def _fired(db: Db, user_id: UserId, trigger_id: TriggerId, caps: Caps) -> bool:
    try:
        made = db.atomically(lambda tx: fire(tx, user_id, trigger_id, caps))
    except Refused as refusal:
        db.atomically(partial(_note, trigger_id=trigger_id, refusal=refusal))
        return False
    fault("intake.after_commit")
    return made is not None


def _note(tx: Connection, *, trigger_id: TriggerId, refusal: Refused) -> None:
    named = {"trigger_id": trigger_id, "reason": f"{refusal.code}: {refusal.message}"}
    tx.execute(statement("trigger_refused"), named)
