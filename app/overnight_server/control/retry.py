"""Retry tasks that have ended: they are revived with everything that ended because of them."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import (
    DagNotFound,
    DagNotRetryable,
    InvalidRequest,
    NotRetryable,
    TaskNotFound,
)
from overnight_server.domain.ids import DagId, TaskId, UserId, show_task
from overnight_server.domain.lifecycle import MOVES, LifecycleEvent, State, sources, target
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps, check_caps
from overnight_server.store import lanes
from overnight_server.store.after_commit import log_after_commit, wake_after_commit
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent

DEFAULT_ATTEMPTS = 3


def retry(
    db: Db,
    user_id: UserId,
    task_id: TaskId,
    *,
    actor: str,
    note: str = "",
    attempts: int = DEFAULT_ATTEMPTS,
    caps: Caps | None = None,
) -> list[TaskId]:
    """Retry a dead-lettered or cancelled task; return the revived tasks, this one first.

    Tasks that ended because of it, and tasks that were cancelled together with it, are revived too;
    completed tasks stay as they are. Its dead letter is resolved and its graph runs again. Raises
    TaskNotFound if the user has no such task, NotRetryable if the task is in another state, and
    InvalidRequest for a task whose parent has ended without meeting the edge. Revived tasks count
    as waiting work: if they exceed the `caps`, nothing is revived.
    """
    check_attempts(attempts)

    def work(tx: Connection) -> list[TaskId]:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        revived = retry_task(
            tx, user_id, task_id, actor=actor, note=note, attempts=attempts, caps=caps
        )
        fault("dead_letter.before_commit")
        return revived

    revived = db.atomically(work)
    fault("dead_letter.after_commit")
    return revived


def retry_dag(
    db: Db,
    user_id: UserId,
    dag_id: DagId,
    *,
    actor: str,
    note: str = "",
    attempts: int = DEFAULT_ATTEMPTS,
    caps: Caps | None = None,
) -> list[TaskId]:
    """Retry every dead-lettered or cancelled task of a graph; return the revived tasks.

    Completed tasks stay as they are, and so do tasks that still cannot run: a fallback whose parent
    completed, or a task behind a dead letter that was closed with `cancel`. Raises DagNotFound if
    the user has no such graph, and DagNotRetryable if there is nothing to revive. If the revived
    tasks exceed the `caps`, nothing is revived.
    """
    check_attempts(attempts)

    def work(tx: Connection) -> list[TaskId]:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        params = {"user_id": user_id, "dag_id": dag_id}
        if tx.execute(statement("tasks_of_graph"), params).first() is None:
            raise DagNotFound
        ended = tx.execute(statement("retryable_tasks_of_graph"), params).scalars().all()
        revived = _revive_all(tx, user_id, ended, attempts=attempts, caps=caps, actor=actor)
        if not revived:
            status = tx.execute(statement("status_of_graph"), {"dag_id": dag_id}).scalar_one()
            raise DagNotRetryable(str(status))
        tx.execute(
            statement("resolve_dead_letter"),
            {"tasks": revived, "resolution": "retry", "actor": actor, "note": note},
        )
        fault("dead_letter.before_commit")
        return revived

    revived = db.atomically(work)
    fault("dead_letter.after_commit")
    return revived


def retry_task(
    tx: Connection,
    user_id: UserId,
    task_id: TaskId,
    *,
    actor: str,
    note: str = "",
    attempts: int = DEFAULT_ATTEMPTS,
    caps: Caps | None = None,
) -> list[TaskId]:
    """Do what `retry` does in a transaction that holds the lane and has set the actor."""
    row = tx.execute(statement("owner_of_task"), {"task_id": task_id}).one_or_none()
    if row is None or row.user_id != user_id:
        raise TaskNotFound
    if State(row.state) not in MOVES[LifecycleEvent.REVIVE].sources:
        raise NotRetryable(row.state)
    resolved = tx.execute(
        statement("resolve_dead_letter"),
        {"tasks": [task_id], "resolution": "retry", "actor": actor, "note": note},
    ).one_or_none()
    if resolved is None and row.state == State.DEAD_LETTERED:
        raise NotRetryable("in a dead letter that was closed for good")
    return revive(tx, user_id, task_id, attempts=attempts, caps=caps, actor=actor)


def check_attempts(attempts: int) -> None:
    """Raise InvalidRequest if a retry would get no attempt."""
    if attempts < 1:
        raise InvalidRequest("attempts", f"{attempts} more attempts", legal="1 or more")


def revive(
    tx: Connection,
    user_id: UserId,
    task_id: TaskId,
    *,
    attempts: int,
    caps: Caps | None,
    actor: str,
) -> list[TaskId]:
    """Revive an ended task with `attempts` more attempts; return it and those revived with it.

    The caller holds the owner's lane, has set the actor, and has resolved the dead letter. Revived
    tasks wait, so the `caps` apply; operators pass None. A task that ran because this one failed
    is not undone.
    """
    unmet = tx.execute(statement("unsatisfiable_parent"), {"task_id": task_id}).first()
    if unmet is not None:
        raise InvalidRequest(
            "task_id",
            f"it waits for {show_task(unmet.id)} ({unmet.condition}), which is {unmet.state}",
            legal="that task first, or one whose edges can still be met",
        )
    dependents = [other for other in _with_dependents(tx, [task_id]) if other != task_id]
    if caps is not None:
        check_caps(tx, user_id, 1 + len(dependents), caps, field_name="task_id")
    return _revive(tx, [task_id, *dependents], attempts, actor, requested=task_id)


def _revive_all(
    tx: Connection,
    user_id: UserId,
    tasks: Sequence[UUID],
    *,
    attempts: int,
    caps: Caps | None,
    actor: str,
) -> list[TaskId]:
    """Revive those of these tasks that can run again; return them."""
    revivable = _with_dependents(tx, tasks)
    if revivable and caps is not None:
        check_caps(tx, user_id, len(revivable), caps, field_name="dag_id")
    return _revive(tx, revivable, attempts, actor)


def _with_dependents(tx: Connection, tasks: Sequence[UUID]) -> list[UUID]:
    return list(tx.execute(statement("tasks_to_revive"), {"tasks": list(tasks)}).scalars())


def _revive(
    tx: Connection,
    tasks: Sequence[UUID],
    attempts: int,
    actor: str,
    *,
    requested: TaskId | None = None,
) -> list[TaskId]:
    params = {"tasks": list(tasks)}
    tx.execute(statement("reopen_edges"), params)
    tx.execute(
        statement("revive"),
        {
            **params,
            "task_id": requested,
            "budget": attempts,
            "sources": sources(LifecycleEvent.REVIVE),
            "target": target(LifecycleEvent.REVIVE),
        },
    )
    tx.execute(
        statement("make_unblocked_ready"),
        {
            **params,
            "sources": sources(LifecycleEvent.UNBLOCK),
            "target": target(LifecycleEvent.UNBLOCK),
        },
    )
    revived = [TaskId(task_id) for task_id in tasks]
    for task_id in revived:
        log_after_commit(tx, LogEvent.TASK_REVIVED, queue_id=show_task(task_id), actor=actor)
    wake_after_commit(tx)
    return revived
