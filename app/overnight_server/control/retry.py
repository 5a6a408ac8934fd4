"""Retry tasks that have ended: they are revived with everything that ended because of them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import (
    DagNotFound,
    DagNotRetryable,
    InvalidRequest,
    NotRetryable,
    TaskNotFound,
)
from overnight_server.control.edit import TaskEdit, apply_edit
from overnight_server.domain.graphs import DISCARDED, parents_first
from overnight_server.domain.ids import DagId, TaskId, UserId, show_task
from overnight_server.domain.lifecycle import MOVES, LifecycleEvent, State, sources, target
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps, check_caps
from overnight_server.store import edges, graphs, lanes
from overnight_server.store.after_commit import log_after_commit, wake_after_commit
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent

DEFAULT_ATTEMPTS = 3
# A user's lane is locked while a chunk of a graph is revived, and claims skip the lane meanwhile.
CHUNK = 1_000


def retry(
    db: Db,
    user_id: UserId,
    task_id: TaskId,
    *,
    actor: str,
    note: str = "",
    attempts: int = DEFAULT_ATTEMPTS,
    caps: Caps | None = None,
    changes: TaskEdit | None = None,
) -> list[TaskId]:
    """Retry a dead-lettered or cancelled task; return the revived tasks, this one first.

    With `changes` the task is changed first, in the same transaction.

    Tasks that ended because of it, and tasks that were cancelled together with it, are revived too;
    completed tasks stay as they are. Its dead letter is resolved and its graph runs again. Raises
    TaskNotFound if the user has no such task, NotRetryable if the task is in another state, and
    InvalidRequest for a task whose parent has ended without meeting the edge. Revived tasks count
    as waiting work: if they exceed the `caps`, nothing is revived.
    """
    check_attempts(attempts)

    def work(tx: Connection) -> list[TaskId]:
        lanes.lock_for_actor(tx, user_id, actor)
        revived = retry_task(
            tx,
            user_id,
            task_id,
            actor=actor,
            note=note,
            attempts=attempts,
            caps=caps,
            changes=changes,
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
    the user has no such graph, DagNotRetryable if there is nothing to revive, and InvalidRequest if
    `attempts` is not positive. If the revived tasks exceed the `caps`, which are checked before the
    first chunk, nothing is revived. Dead letters are resolved with the `note`.

    A large graph is read without a lock, then revived in chunks with a transaction each, parents
    before their children. After a crash in between, another retry revives the rest.
    """
    check_attempts(attempts)

    def revive_chunk(tx: Connection, chunk: _RevivableChunk) -> list[TaskId]:
        lanes.lock_for_actor(tx, user_id, actor)
        if caps is not None and chunk.is_first:
            check_caps(tx, user_id, chunk.count_of_all, caps, field_name="dag_id")
        revived = _revive(tx, chunk.tasks, attempts, actor, children=chunk.children)
        resolution = {"resolution": "retry", "actor": actor, "note": note}
        tx.execute(statement("resolve_dead_letter"), {"tasks": revived, **resolution})
        # Parents of an earlier chunk may have ended again already.
        unmet = tx.execute(statement("parents_not_met"), {"tasks": revived}).scalars().all()
        edges.resolve_dependents(tx, unmet)
        fault("dead_letter.before_commit")
        return revived

    read = partial(_revivable_tasks_of_graph, user_id=user_id, dag_id=dag_id)
    revived: list[TaskId] = []
    for chunk in db.atomically(read, one_instant=True):
        revived += db.atomically(partial(revive_chunk, chunk=chunk))
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
    changes: TaskEdit | None = None,
) -> list[TaskId]:
    """Do what `retry` does in a transaction that holds the lane and has set the actor."""
    row = tx.execute(statement("task_to_revive"), {"task_id": task_id}).one_or_none()
    if row is None or row.user_id != user_id:
        raise TaskNotFound
    if State(row.state) not in MOVES[LifecycleEvent.REVIVE].sources:
        raise NotRetryable(row.state)
    resolution = "retry" if changes is None else "modify_and_retry"
    if row.failure_reason == DISCARDED:
        raise NotRetryable("in a dead letter that was closed for good")
    tx.execute(
        statement("resolve_dead_letter"),
        {"tasks": [task_id], "resolution": resolution, "actor": actor, "note": note},
    )
    if changes is not None:
        apply_edit(tx, user_id, task_id, changes, MOVES[LifecycleEvent.REVIVE].sources)
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


def revive_dependents(
    tx: Connection,
    user_id: UserId,
    task_id: TaskId,
    *,
    attempts: int,
    caps: Caps | None,
    actor: str,
) -> list[TaskId]:
    """Revive the tasks that ended because of a task which does not run again; return them.

    The caller holds the lane, has set the actor, and resolves the edges of the task afterwards.
    """
    dependents = [other for other in _with_dependents(tx, [task_id]) if other != task_id]
    if caps is not None:
        check_caps(tx, user_id, len(dependents), caps, field_name="task_id")
    return _revive(tx, dependents, attempts, actor)


@dataclass(frozen=True)
class _RevivableChunk:
    """Tasks of a graph that are revived in one transaction.

    `children` are the tasks of this retry that depend on them, in this chunk or a later one.
    """

    tasks: Sequence[UUID]
    children: Sequence[UUID]
    is_first: bool
    count_of_all: int


def _revivable_tasks_of_graph(
    tx: Connection, user_id: UserId, dag_id: DagId
) -> list[_RevivableChunk]:
    """Return the tasks of a graph that can be revived, parents first, in chunks."""
    params = {"user_id": user_id, "dag_id": dag_id}
    if tx.execute(statement("tasks_of_graph"), params).first() is None:
        raise DagNotFound
    ended = tx.execute(statement("retryable_tasks_of_graph"), params).scalars().all()
    tasks = set(_with_dependents(tx, ended))
    if not tasks:
        status = tx.execute(statement("status_of_graph"), {"dag_id": dag_id}).scalar_one()
        raise DagNotRetryable(str(status))
    pairs = [pair for pair in graphs.edges_of(tx, user_id, dag_id) if tasks.issuperset(pair)]
    children: dict[UUID, list[UUID]] = defaultdict(list)
    for parent, child in pairs:
        children[parent].append(child)
    ordered = parents_first(tasks, pairs)
    return [
        _RevivableChunk(
            chunk,
            list({child for task in chunk for child in children[task]}),
            is_first=start == 0,
            count_of_all=len(ordered),
        )
        for start in range(0, len(ordered), CHUNK)
        for chunk in [ordered[start : start + CHUNK]]
    ]


def _with_dependents(tx: Connection, tasks: Sequence[UUID]) -> list[UUID]:
    return list(tx.execute(statement("tasks_to_revive"), {"tasks": list(tasks)}).scalars())


def _revive(
    tx: Connection,
    tasks: Sequence[UUID],
    attempts: int,
    actor: str,
    *,
    requested: TaskId | None = None,
    children: Sequence[UUID] | None = None,
) -> list[TaskId]:
    """Revive those of the tasks that have ended; return them.

    Those of `children` that depend on them wait for them again, by default these tasks themselves.
    """
    moved = tx.execute(
        statement("revive"),
        {
            "tasks": list(tasks),
            "task_id": requested,
            "budget": attempts,
            "sources": sources(LifecycleEvent.REVIVE),
            "target": target(LifecycleEvent.REVIVE),
        },
    )
    ids = set(moved.scalars())
    revived = [TaskId(task_id) for task_id in tasks if task_id in ids]
    again = revived if children is None else children
    tx.execute(statement("reopen_edges"), {"parents": revived, "tasks": again})
    tx.execute(
        statement("make_unblocked_ready"),
        {
            "tasks": revived,
            "sources": sources(LifecycleEvent.UNBLOCK),
            "target": target(LifecycleEvent.UNBLOCK),
        },
    )
    for task_id in revived:
        log_after_commit(tx, LogEvent.TASK_REVIVED, queue_id=show_task(task_id), actor=actor)
    wake_after_commit(tx)
    return revived
