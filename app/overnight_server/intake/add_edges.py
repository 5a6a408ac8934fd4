"""Add edges between tasks of a graph that has been submitted already."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Connection, Row

from overnight.errors import InvalidRequest
from overnight_server.domain.graphs import shortest_path
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.lifecycle import State
from overnight_server.fault_points import fault
from overnight_server.intake.insert_into_graph import in_another_graph, read_tasks_to_connect
from overnight_server.store import graphs, lanes
from overnight_server.store.db import Db
from overnight_server.store.graphs import EdgeRow
from overnight_server.store.statements import statement

# States of a parent in which the condition of an edge can no longer be met.
NEVER_MET = {
    "success": {State.DEAD_LETTERED, State.CANCELLED},
    "failure": {State.COMPLETED, State.CANCELLED},
    "finished": set[State](),
}


@dataclass(frozen=True)
class NewEdge:
    """An edge between two existing tasks of one graph: `child` waits for `parent`."""

    parent: TaskId
    child: TaskId
    condition: Literal["success", "finished", "failure"] = "success"


def add_edges(db: Db, user_id: UserId, edges: Sequence[NewEdge], *, actor: str) -> None:
    """Add edges between the user's tasks, all or none.

    The child must be pending: a ready task may be claimed at any moment. The condition of a parent
    that has ended already counts as met at once. Raises InvalidRequest for an edge that leaves its
    graph, closes a circle or can never be met.
    """

    def work(tx: Connection) -> None:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        _add_edges(tx, user_id, edges)
        fault("edges.before_commit")

    db.atomically(work)
    fault("edges.after_commit")


def _add_edges(tx: Connection, user_id: UserId, edges: Sequence[NewEdge]) -> None:
    tasks = read_tasks_to_connect(
        tx, user_id, [task_id for edge in edges for task_id in (edge.parent, edge.child)]
    )
    dags = {row.dag_id for row in tasks.values()}
    if len(dags) > 1:
        raise in_another_graph("edges", edges[0].parent)
    for dag_id in dags:
        existing = graphs.edges_of(tx, user_id, dag_id)
        for edge in edges:
            if (edge.parent, edge.child) in existing:
                continue
            _check_edge(tasks, edge)
            path = shortest_path(existing, edge.child, edge.parent)
            if path is not None:
                raise _closes_circle(tx, user_id, [edge.parent, *path])
            existing.append((edge.parent, edge.child))
            graphs.add_edges(tx, [EdgeRow(edge.parent, edge.child, edge.condition)])
        graphs.update_dependency_boosts(tx, user_id, dag_id)


def _check_edge(tasks: dict[UUID, Row[Any]], edge: NewEdge) -> None:
    parent, child = tasks[edge.parent], tasks[edge.child]
    if child.state != State.PENDING:
        raise InvalidRequest(
            "edges",
            f"{show_task(child.id)} is {child.state}: it can no longer wait for another task",
            legal="a child that is pending",
        )
    if child.awaits_budget is not None:
        raise InvalidRequest(
            "edges",
            f"{show_task(child.id)} waits for the approval of its budget",
            legal="a child that waits for other tasks",
        )
    if parent.state in NEVER_MET[edge.condition]:
        raise InvalidRequest(
            "edges",
            f"{show_task(parent.id)} is {parent.state}: the condition {edge.condition!r}"
            " can never be met",
            legal="a parent that can still meet the condition",
        )


def _closes_circle(tx: Connection, user_id: UserId, circle: Sequence[UUID]) -> InvalidRequest:
    """Return the error for an edge that closes this circle, in the text that submit uses."""
    tasks = read_tasks_to_connect(tx, user_id, circle)
    titles = " → ".join(tasks[task_id].title for task_id in circle)
    return InvalidRequest(
        "edges", f"Would create circular dependency: {titles}", legal="edges without a circle"
    )
