"""Resolve dead letters: retry the task, change and retry it, or close the dead letter."""

from sqlalchemy import Connection

from overnight.errors import NotDeadLettered, TaskNotFound
from overnight_server.control.edit import TaskEdit, apply_edit
from overnight_server.control.retry import DEFAULT_ATTEMPTS, check_attempts, revive
from overnight_server.domain.graphs import DISCARDED
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.lifecycle import LifecycleEvent, State, sources, target
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps
from overnight_server.store import lanes
from overnight_server.store.after_commit import log_after_commit
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent


def retry(
    db: Db,
    task_id: TaskId,
    *,
    actor: str,
    note: str = "",
    attempts: int = DEFAULT_ATTEMPTS,
    user_id: UserId | None = None,
    caps: Caps | None = None,
) -> None:
    """Retry a dead-lettered task with `attempts` more attempts, and what its end cancelled.

    With a `user_id`, here and below, another user's task raises TaskNotFound.
    """
    check_attempts(attempts)

    def work(tx: Connection) -> None:
        owner = _resolve(tx, task_id, "retry", actor=actor, note=note, user_id=user_id)
        revive(tx, owner, task_id, attempts=attempts, caps=caps, actor=actor)
        fault("dead_letter.before_commit")

    db.atomically(work)
    fault("dead_letter.after_commit")


def modify_and_retry(
    db: Db,
    task_id: TaskId,
    changes: TaskEdit,
    *,
    actor: str,
    note: str = "",
    attempts: int = DEFAULT_ATTEMPTS,
    user_id: UserId | None = None,
    caps: Caps | None = None,
) -> None:
    """Change a dead-lettered task, then retry it; both or neither."""
    check_attempts(attempts)

    def work(tx: Connection) -> None:
        owner = _resolve(tx, task_id, "modify_and_retry", actor=actor, note=note, user_id=user_id)
        apply_edit(tx, owner, task_id, changes, {State.DEAD_LETTERED})
        revive(tx, owner, task_id, attempts=attempts, caps=caps, actor=actor)
        fault("dead_letter.before_commit")

    db.atomically(work)
    fault("dead_letter.after_commit")


def discard(
    db: Db, task_id: TaskId, *, actor: str, note: str = "", user_id: UserId | None = None
) -> None:
    """Close a dead letter for good: its task becomes `cancelled` and cannot be retried.

    The tasks that depend on it stay as they are: they were resolved when it failed. If nothing else
    of its graph failed, the graph is `cancelled` too.
    """

    def work(tx: Connection) -> None:
        _resolve(tx, task_id, "cancel", actor=actor, note=note, user_id=user_id)
        tx.execute(
            statement("discard"),
            {
                "task_id": task_id,
                "reason": DISCARDED,
                "sources": sources(LifecycleEvent.DISCARD),
                "target": target(LifecycleEvent.DISCARD),
            },
        )
        log_after_commit(
            tx,
            LogEvent.TASK_CANCELLED,
            queue_id=show_task(task_id),
            actor=actor,
            reason=DISCARDED,
        )
        fault("dead_letter.before_commit")

    db.atomically(work)
    fault("dead_letter.after_commit")


def _resolve(
    tx: Connection,
    task_id: TaskId,
    resolution: str,
    *,
    actor: str,
    note: str,
    user_id: UserId | None,
) -> UserId:
    """Resolve a task's dead letter and return the owner, whose lane stays locked."""
    row = tx.execute(statement("owner_of_task"), {"task_id": task_id}).one_or_none()
    if row is None or user_id not in (None, row.user_id):
        raise TaskNotFound
    owner = UserId(row.user_id)
    lanes.lock(tx, [owner])
    tx.execute(statement("set_actor"), {"actor": actor})
    resolved = tx.execute(
        statement("resolve_dead_letter"),
        {"tasks": [task_id], "resolution": resolution, "actor": actor, "note": note},
    ).one_or_none()
    if resolved is None:
        raise NotDeadLettered(row.state)
    return owner
