"""Suspend: a task gives its slot back, waits for other tasks, and runs again when they ended."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.ids import TaskId
from overnight_server.domain.lifecycle import LifecycleEvent, sources, target
from overnight_server.store import graphs
from overnight_server.store.graphs import EdgeRow
from overnight_server.store.statements import statement

# A suspended task runs again however the tasks that it waits for have ended.
CONDITION = "finished"


def would_close_circle(tx: Connection, task_id: TaskId, tasks: Sequence[UUID]) -> bool:
    """Return whether one of `tasks` waits, directly or not, for the task that would wait for it."""
    params = {"task_id": task_id, "tasks": list(tasks)}
    return bool(tx.execute(statement("tasks_reached_from"), params).all())


def tasks_not_spawned_by(tx: Connection, task_id: TaskId, tasks: Sequence[UUID]) -> list[UUID]:
    """Return those of `tasks` that the task has not spawned; it may not wait for them."""
    params = {"task_id": task_id, "tasks": list(tasks)}
    return list(tx.execute(statement("tasks_not_spawned_by"), params).scalars())


def suspend(tx: Connection, waiting: Mapping[TaskId, Sequence[UUID]]) -> None:
    """Add edges from the awaited tasks to tasks that were just suspended.

    A suspended task whose awaited tasks have all ended becomes ready at once. The lanes have been
    locked since before the suspension, so an awaited task either ended before, and its edge counts
    as met, or ends later and finds the edge.
    """
    edges = [
        EdgeRow(awaited, task_id, CONDITION)
        for task_id, tasks in waiting.items()
        for awaited in dict.fromkeys(tasks)
    ]
    graphs.add_edges(tx, edges)
    params = {"tasks": list(waiting)}
    tx.execute(
        statement("make_unblocked_ready"),
        {
            **params,
            "sources": sources(LifecycleEvent.UNBLOCK),
            "target": target(LifecycleEvent.UNBLOCK),
        },
    )
    for row in tx.execute(statement("graphs_of"), params).all():
        graphs.update_dependency_boosts(tx, row.user_id, row.dag_id)
