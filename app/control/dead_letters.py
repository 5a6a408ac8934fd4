"""Resolving dead letters: give the task another chance, or let it rest."""

from sqlalchemy import Connection

from app.control.revive import FRESH_ATTEMPTS, check_attempts, revive
from app.domain.errors import NotDeadLettered, TaskNotFound
from app.domain.ids import TaskId
from app.faults import fault
from app.store import lanes
from app.store.db import Db
from app.store.statements import statement


def retry(
    db: Db, task_id: TaskId, *, actor: str, note: str = "", attempts: int = FRESH_ATTEMPTS
) -> None:
    """Bring a dead task back with `attempts` more tries, and with it what its death cancelled."""
    check_attempts(attempts)

    def work(tx: Connection) -> None:
        _resolve(tx, task_id, "retry", actor, note)
        revive(tx, task_id, attempts)
        fault("dead_letter.before_commit")

    db.atomically(work)
    fault("dead_letter.after_commit")


def discard(db: Db, task_id: TaskId, *, actor: str, note: str = "") -> None:
    """Close a dead letter for good; the task stays as it ended."""
    db.atomically(lambda tx: _resolve(tx, task_id, "cancel", actor, note))


def _resolve(tx: Connection, task_id: TaskId, resolution: str, actor: str, note: str) -> None:
    row = tx.execute(statement("owner_of"), {"task_id": task_id}).one_or_none()
    if row is None:
        raise TaskNotFound
    lanes.lock(tx, [row.user_id])
    tx.execute(statement("act_as"), {"actor": actor})
    closed = tx.execute(
        statement("resolve_dead_letter"),
        {"task_id": task_id, "resolution": resolution, "actor": actor, "note": note},
    ).one_or_none()
    if closed is None:
        raise NotDeadLettered(row.state)
