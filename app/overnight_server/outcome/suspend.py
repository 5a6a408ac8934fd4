"""Suspending: a task that gave its slot back waits for others, and goes on when they are over."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.ids import TaskId
from overnight_server.domain.lifecycle import Event, sources, target
from overnight_server.store import graphs
from overnight_server.store.graphs import EdgeRow
from overnight_server.store.statements import statement

# Who waits for others wants to know how they ended, and not only that they succeeded.
CONDITION = "finished"


def would_close_circle(tx: Connection, task_id: TaskId, tasks: Sequence[UUID]) -> bool:
    """Whether one of these tasks waits, however far up, for the one that wants to wait for it."""
    named = {"task_id": task_id, "tasks": list(tasks)}
    return bool(tx.execute(statement("tasks_reached_from"), named).all())


def tasks_not_spawned_by(tx: Connection, task_id: TaskId, tasks: Sequence[UUID]) -> list[UUID]:
    """Return those that the task has not spawned: what they come to is none of its business."""
    named = {"task_id": task_id, "tasks": list(tasks)}
    return list(tx.execute(statement("tasks_not_spawned_by"), named).scalars())


def suspend(tx: Connection, waiting: Mapping[TaskId, Sequence[UUID]]) -> None:
    """Let tasks that were just suspended wait for others; who need not wait any more is ready.

    Their lanes are held since before the move: an awaited task that ended before counts at once,
    and one that ends later finds the edge.
    """
    links = [
        EdgeRow(one, task_id, CONDITION)
        for task_id, tasks in waiting.items()
        for one in dict.fromkeys(tasks)
    ]
    graphs.add_edges(tx, links)
    named = {"tasks": list(waiting)}
    tx.execute(
        statement("make_unblocked_ready"),
        {**named, "sources": sources(Event.UNBLOCK), "target": target(Event.UNBLOCK)},
    )
    for row in tx.execute(statement("graphs_of"), named).all():
        graphs.update_dependency_boosts(tx, row.user_id, row.dag_id)
