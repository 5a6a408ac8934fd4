"""Overrule a validator: a person accepts the output that it rejected."""

from sqlalchemy import Connection

from overnight.errors import NotOverrulable, TaskNotFound
from overnight_server.control.retry import DEFAULT_ATTEMPTS, revive_dependents
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.lifecycle import LifecycleEvent, sources, target
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps
from overnight_server.store import edges, lanes
from overnight_server.store.after_commit import log_after_commit, wake_after_commit
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent


def overrule(
    db: Db,
    user_id: UserId,
    task_id: TaskId,
    *,
    actor: str,
    note: str = "",
    caps: Caps | None = None,
) -> None:
    """Complete a task with the output that a validator rejected in its last run.

    Its dead letter is resolved, and the tasks that were cancelled because it failed wait again and
    find it completed; a task that ran because it failed is not undone. Raises TaskNotFound if the
    user has no such task, and NotOverrulable if its last run did not end with a rejected output.
    Revived tasks count as waiting work: if they exceed the `caps`, nothing changes.
    """

    def work(tx: Connection) -> None:
        lanes.lock_for_actor(tx, user_id, actor)
        row = tx.execute(statement("owner_of_task"), {"task_id": task_id}).one_or_none()
        if row is None or row.user_id != user_id:
            raise TaskNotFound
        params = {
            "user_id": user_id,
            "task_id": task_id,
            "sources": sources(LifecycleEvent.OVERRULE),
            "target": target(LifecycleEvent.OVERRULE),
        }
        if tx.execute(statement("overrule"), params).one_or_none() is None:
            raise NotOverrulable(row.state)
        tx.execute(
            statement("resolve_dead_letter"),
            {"tasks": [task_id], "resolution": "overrule", "actor": actor, "note": note},
        )
        revive_dependents(tx, user_id, task_id, attempts=DEFAULT_ATTEMPTS, caps=caps, actor=actor)
        edges.resolve_dependents(tx, [task_id])
        log_after_commit(tx, LogEvent.TASK_OVERRULED, queue_id=show_task(task_id), actor=actor)
        wake_after_commit(tx)
        fault("dead_letter.before_commit")

    db.atomically(work)
    fault("dead_letter.after_commit")
