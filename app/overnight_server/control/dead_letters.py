"""Resolving dead letters: give the task another chance, or let it rest."""

from sqlalchemy import Connection

from overnight.errors import NotDeadLettered, TaskNotFound
from overnight_server.control.edit import Changes, apply
from overnight_server.control.revive import FRESH_ATTEMPTS, check_attempts, revive
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.lifecycle import State
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def retry(
    db: Db,
    task_id: TaskId,
    *,
    actor: str,
    note: str = "",
    attempts: int = FRESH_ATTEMPTS,
    user_id: UserId | None = None,
    caps: Caps | None = None,
) -> None:
    """Bring a dead task back with `attempts` more tries, and with it what its death cancelled.

    With a `user_id`, here and below, another user's task looks exactly like none.
    """
    check_attempts(attempts)

    def work(tx: Connection) -> None:
        owner = _resolve(tx, task_id, "retry", actor=actor, note=note, user_id=user_id)
        revive(tx, owner, task_id, attempts, caps)
        fault("dead_letter.before_commit")

    db.atomically(work)
    fault("dead_letter.after_commit")


def modify_and_retry(
    db: Db,
    task_id: TaskId,
    changes: Changes,
    *,
    actor: str,
    note: str = "",
    attempts: int = FRESH_ATTEMPTS,
    user_id: UserId | None = None,
    caps: Caps | None = None,
) -> None:
    """Change a dead task, then bring it back like `retry`; both or neither."""
    check_attempts(attempts)

    def work(tx: Connection) -> None:
        owner = _resolve(tx, task_id, "modify_and_retry", actor=actor, note=note, user_id=user_id)
        apply(tx, owner, task_id, changes, {State.DEAD_LETTERED})
        revive(tx, owner, task_id, attempts, caps)
        fault("dead_letter.before_commit")

    db.atomically(work)
    fault("dead_letter.after_commit")


def discard(
    db: Db, task_id: TaskId, *, actor: str, note: str = "", user_id: UserId | None = None
) -> None:
    """Close a dead letter for good; the task stays as it ended."""
    db.atomically(
        lambda tx: _resolve(tx, task_id, "cancel", actor=actor, note=note, user_id=user_id)
    )


def _resolve(
    tx: Connection,
    task_id: TaskId,
    resolution: str,
    *,
    actor: str,
    note: str,
    user_id: UserId | None,
) -> UserId:
    """Close a task's dead letter and return whose it is; the lane stays held."""
    row = tx.execute(statement("owner_of_task"), {"task_id": task_id}).one_or_none()
    if row is None or user_id not in (None, row.user_id):
        raise TaskNotFound
    owner = UserId(row.user_id)
    lanes.lock(tx, [owner])
    tx.execute(statement("set_actor"), {"actor": actor})
    closed = tx.execute(
        statement("resolve_dead_letter"),
        {"tasks": [task_id], "resolution": resolution, "actor": actor, "note": note},
    ).one_or_none()
    if closed is None:
        raise NotDeadLettered(row.state)
    return owner
