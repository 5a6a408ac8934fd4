"""Cancel tasks: a waiting task ends at once, a running task is asked to stop."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import DagAlreadyFinished, DagNotFound, TaskAlreadyCompleted, TaskNotFound
from overnight_server.domain.graphs import STOPPED
from overnight_server.domain.ids import DagId, TaskId, UserId, show_task
from overnight_server.domain.lifecycle import OPEN, LifecycleEvent, State, target
from overnight_server.fault_points import fault
from overnight_server.outcome.settle import STOPPABLE_AT_ONCE, resolve_cancelled
from overnight_server.store import edges, lanes
from overnight_server.store.after_commit import log_after_commit, request_cancel_after_commit
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent


@dataclass(frozen=True)
class CancelledTasks:
    """Which tasks were cancelled at once, and which run and were asked to stop."""

    cancelled: Sequence[UUID]
    requested: Sequence[UUID]

    @property
    def count(self) -> int:
        """How many tasks the cancel reached."""
        return len(self.cancelled) + len(self.requested)


def cancel(db: Db, user_id: UserId, task_id: TaskId, *, actor: str) -> State:
    """Cancel one of the user's tasks and return its new state.

    A task that does not run becomes `cancelled`, and so do the tasks it spawned; its dependents are
    resolved. `running` means that a running task was asked to stop: workers are woken, so that the
    run stops within a second. Raises
    TaskNotFound if the user has no such task, and TaskAlreadyCompleted if the task has ended.
    """

    def work(tx: Connection) -> State:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        tasks = cancel_tasks(tx, user_id, [task_id], actor=actor, reason=STOPPED)
        fault("cancel.before_commit")
        if tasks.cancelled:
            resolve_cancelled(tx, tasks.cancelled)
            return State.CANCELLED
        if tasks.requested:
            return State.RUNNING
        row = tx.execute(statement("owner_of_task"), {"task_id": task_id}).one_or_none()
        if row is None or row.user_id != user_id:
            raise TaskNotFound
        raise TaskAlreadyCompleted(row.state)

    state = db.atomically(work)
    fault("cancel.after_commit")
    return state


def cancel_dag(db: Db, user_id: UserId, dag_id: DagId, *, actor: str) -> CancelledTasks:
    """Cancel every open task of one of the user's graphs; running tasks are asked to stop.

    Raises DagNotFound if the user has no such graph, and DagAlreadyFinished if it has ended.
    """

    def work(tx: Connection) -> CancelledTasks:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        params = {"user_id": user_id, "dag_id": dag_id}
        members = tx.execute(statement("tasks_of_graph"), params).all()
        if not members:
            raise DagNotFound
        open_tasks = [task.id for task in members if State(task.state) in OPEN]
        tasks = cancel_tasks(tx, user_id, open_tasks, actor=actor, reason=STOPPED)
        if not tasks.count:
            status = tx.execute(statement("status_of_graph"), {"dag_id": dag_id}).scalar_one()
            raise DagAlreadyFinished(str(status))
        edges.resolve_dependents(tx, tasks.cancelled)
        fault("cancel.before_commit")
        return tasks

    tasks = db.atomically(work)
    fault("cancel.after_commit")
    return tasks


def cancel_tasks(
    tx: Connection, user_id: UserId, tasks: Sequence[UUID], *, actor: str, reason: str
) -> CancelledTasks:
    """Cancel those of a user's tasks that are open, in a transaction that holds the lane.

    The caller has set the actor, and resolves the dependents of the tasks that were cancelled.
    """
    rows = tx.execute(
        statement("cancel"),
        {
            "user_id": user_id,
            "tasks": list(tasks),
            "sources": STOPPABLE_AT_ONCE,
            "target": target(LifecycleEvent.CANCEL),
            "reason": reason,
        },
    ).all()
    cancelled = [row.id for row in rows]
    for task_id in cancelled:
        queue_id = show_task(task_id)
        log_after_commit(tx, LogEvent.TASK_CANCELLED, queue_id=queue_id, actor=actor, reason=reason)
    # All get the same instant: a later retry revives tasks that were cancelled together.
    requested_at = max((row.at for row in rows), default=None)
    running = sorted(set(tasks) - set(cancelled))
    if not running:
        return CancelledTasks(cancelled, ())
    # Requested after the cancel, so that a claim which was started meanwhile is included.
    params = {"user_id": user_id, "tasks": running, "asked_at": requested_at}
    requested = tx.execute(statement("request_cancel"), params).scalars().all()
    report_cancel_requested(tx, requested, actor)
    return CancelledTasks(cancelled, requested)


def report_cancel_requested(tx: Connection, tasks: Sequence[UUID], actor: str) -> None:
    """Log the requests and wake the workers, once the transaction has committed."""
    for task_id in tasks:
        log_after_commit(
            tx, LogEvent.CANCEL_REQUESTED, queue_id=show_task(TaskId(task_id)), actor=actor
        )
    if tasks:
        request_cancel_after_commit(tx)
