"""Cancel tasks: a waiting task ends at once, a running task is requested to stop."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import DagAlreadyFinished, DagNotFound, TaskAlreadyCompleted, TaskNotFound
from overnight_server.domain.graphs import STOPPED, parents_first
from overnight_server.domain.ids import DagId, TaskId, UserId, show_task
from overnight_server.domain.lifecycle import OPEN, LifecycleEvent, State, target
from overnight_server.fault_points import fault
from overnight_server.outcome.settle import STOPPABLE_AT_ONCE, resolve_cancelled
from overnight_server.store import edges, graphs, lanes
from overnight_server.store.after_commit import log_after_commit, request_cancel_after_commit
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent

# A user's lane is locked while a chunk of a graph is cancelled, and claims skip the lane meanwhile.
CHUNK = 1_000


@dataclass(frozen=True)
class CancelledTasks:
    """Which tasks were cancelled at once, and which run and were requested to stop."""

    cancelled: Sequence[UUID]
    requested: Sequence[UUID]
    # The instant that the cancelled tasks share; None if there are none.
    asked_at: datetime | None = None

    @property
    def count(self) -> int:
        """How many tasks the cancel reached."""
        return len(self.cancelled) + len(self.requested)

    def with_more(self, later: "CancelledTasks") -> "CancelledTasks":
        """Return these tasks and those of a later transaction of the same request."""
        return CancelledTasks(
            [*self.cancelled, *later.cancelled],
            [*self.requested, *later.requested],
            self.asked_at or later.asked_at,
        )


def cancel(db: Db, user_id: UserId, task_id: TaskId, *, actor: str) -> State:
    """Cancel one of the user's tasks and return its new state.

    A task that does not run becomes `cancelled`, and so do the tasks it spawned; its dependents are
    resolved. `running` means that a running task was requested to stop: workers are woken, so that
    the run stops within a second. Raises TaskNotFound if the user has no such task, and
    TaskAlreadyCompleted if the task has ended.
    """

    def work(tx: Connection) -> State:
        lanes.lock_for_actor(tx, user_id, actor)
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
    """Cancel every open task of one of the user's graphs; running tasks are requested to stop.

    Raises DagNotFound if the user has no such graph, and DagAlreadyFinished if it has ended.

    A large graph is cancelled in chunks with a transaction each, children before their parents, so
    that no chunk makes a task ready or cancels the tasks of another one. After a crash in between,
    another cancel cancels the rest.
    """
    so_far = CancelledTasks((), ())

    def children_first(tx: Connection) -> list[UUID]:
        tasks = _open_tasks(tx, user_id, dag_id)
        if len(tasks) <= CHUNK:
            return tasks
        return parents_first(tasks, graphs.edges_of(tx, user_id, dag_id))[::-1]

    def cancel_chunk(tx: Connection, chunk: Sequence[UUID]) -> CancelledTasks:
        done = cancel_tasks(
            tx, user_id, chunk, actor=actor, reason=STOPPED, asked_at=so_far.asked_at
        )
        edges.resolve_dependents(tx, done.cancelled)
        fault("cancel.before_commit")
        return so_far.with_more(done)

    def cancel_listed(tx: Connection, chunk: Sequence[UUID]) -> CancelledTasks:
        lanes.lock_for_actor(tx, user_id, actor)
        return cancel_chunk(tx, chunk)

    def cancel_rest(tx: Connection) -> CancelledTasks:
        lanes.lock_for_actor(tx, user_id, actor)
        # Read while the lane is held, so that tasks which joined the graph meanwhile are included.
        asked = set(so_far.requested)
        rest = [task for task in _open_tasks(tx, user_id, dag_id) if task not in asked]
        done = cancel_chunk(tx, rest)
        if not done.count:
            status = tx.execute(statement("status_of_graph"), {"dag_id": dag_id}).scalar_one()
            raise DagAlreadyFinished(str(status))
        return done

    tasks = db.atomically(children_first, one_instant=True)
    for start in range(0, len(tasks) - CHUNK, CHUNK):
        chunk = tasks[start : start + CHUNK]
        so_far = db.atomically(partial(cancel_listed, chunk=chunk))
        fault("cancel.after_commit")
    done = db.atomically(cancel_rest)
    fault("cancel.after_commit")
    return done


def _open_tasks(tx: Connection, user_id: UserId, dag_id: DagId) -> list[UUID]:
    """Return the tasks of a graph that have not ended; raise DagNotFound if it has no tasks."""
    params = {"user_id": user_id, "dag_id": dag_id}
    members = tx.execute(statement("tasks_of_graph"), params).all()
    if not members:
        raise DagNotFound
    return [task.id for task in members if State(task.state) in OPEN]


def cancel_tasks(
    tx: Connection,
    user_id: UserId,
    tasks: Sequence[UUID],
    *,
    actor: str,
    reason: str,
    asked_at: datetime | None = None,
) -> CancelledTasks:
    """Cancel those of a user's tasks that are open, in a transaction that holds the lane.

    The caller has set the actor, and resolves the dependents of the tasks that were cancelled.
    `asked_at` is when the request began, if an earlier transaction cancelled other tasks of it.
    """
    rows = tx.execute(
        statement("cancel"),
        {
            "user_id": user_id,
            "tasks": list(tasks),
            "sources": STOPPABLE_AT_ONCE,
            "target": target(LifecycleEvent.CANCEL),
            "reason": reason,
            "asked_at": asked_at,
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
        return CancelledTasks(cancelled, (), requested_at)
    # Requested after the cancel, so that a claim which was started meanwhile is included. A run
    # gets its whole grace: the instant of an earlier transaction would shorten it.
    instant = requested_at if asked_at is None else None
    params = {"user_id": user_id, "tasks": running, "asked_at": instant}
    requested = tx.execute(statement("request_cancel"), params).scalars().all()
    report_cancel_requested(tx, requested, actor)
    return CancelledTasks(cancelled, requested, requested_at)


def report_cancel_requested(tx: Connection, tasks: Sequence[UUID], actor: str) -> None:
    """Log the requests and wake the workers, once the transaction has committed."""
    for task_id in tasks:
        log_after_commit(
            tx, LogEvent.CANCEL_REQUESTED, queue_id=show_task(TaskId(task_id)), actor=actor
        )
    if tasks:
        request_cancel_after_commit(tx)
