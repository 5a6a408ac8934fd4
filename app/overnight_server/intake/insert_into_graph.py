"""Insert one more task into an existing graph; the caller holds the owner's lane.

Every task of a graph has the same owner, and whoever completes, cancels or adds a task holds that
owner's lane first. So no task can end between the look-up of its state and the insert of an edge.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row

from overnight.errors import InvalidRequest, TaskNotFound
from overnight_server.domain.ids import DagId, TaskId, UserId, new_task_id, show_task
from overnight_server.domain.lifecycle import State
from overnight_server.intake import execution, references
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.task_rows import as_json, insert_params, task_row
from overnight_server.store import graphs
from overnight_server.store.statements import statement


def insert_dag_row_of_lone_task(tx: Connection, task_id: UUID) -> None:
    """Insert the graph row of a task that is alone in its graph.

    Such a task has no graph row; it needs one before a second task joins its graph.
    """
    params = {"task_id": task_id}
    tx.execute(statement("mark_has_dag_row"), params).one()
    tx.execute(statement("insert_dag_of_lone_task"), params)


def insert_into_graph(
    tx: Connection,
    user_id: UserId,
    dag_id: DagId,
    task: NewTask,
    caps: Caps,
    *,
    depends_on: Sequence[TaskId] = (),
    extra_columns: Mapping[str, object] | None = None,
) -> TaskId:
    """Insert a task that waits for `depends_on` and for the tasks whose output it reads.

    The graph has a row. `extra_columns` are those of a spawned task: its parent and spawn key.
    """
    task_id = new_task_id()
    [task] = execution.resolve(tx, user_id, [task])
    [resolved] = references.resolve(tx, user_id, [task.context_refs], {}, dag_id=dag_id)
    parents = list(dict.fromkeys([*depends_on, *resolved.after]))
    unmet = _unmet_parents(tx, user_id, dag_id, parents)
    row = task_row(task, task_id, dag_id, caps, unmet=len(unmet), weight=0.0) | {
        "context_refs": resolved.stored,
        **(extra_columns or {}),
    }
    tx.execute(statement("insert_tasks"), insert_params(user_id, [row]))
    if parents:
        # The row counts its unmet parents from the start, so it is never ready too early.
        edges = [
            {
                "parent_id": parent,
                "child_id": task_id,
                "dag_id": dag_id,
                "condition": "success",
                "on_unmet": "cancel",
                "is_met": parent not in unmet,
            }
            for parent in parents
        ]
        tx.execute(statement("insert_edges"), {"user_id": user_id, "edges": as_json(edges)})
        graphs.update_dependency_boosts(tx, user_id, dag_id)
    return task_id


def read_tasks_to_connect(
    tx: Connection, user_id: UserId, tasks: Sequence[UUID]
) -> dict[UUID, Row[Any]]:
    """Return the tasks by id; raise TaskNotFound if the user lacks one of them."""
    params = {"user_id": user_id, "tasks": list(dict.fromkeys(tasks))}
    rows = {row.id: row for row in tx.execute(statement("tasks_to_connect"), params)}
    if any(task_id not in rows for task_id in tasks):
        raise TaskNotFound
    return rows


def in_another_graph(field: str, task_id: TaskId) -> InvalidRequest:
    """Return the error for an edge that would leave its graph."""
    return InvalidRequest(
        field, f"{show_task(task_id)} belongs to another graph", legal="tasks of one graph"
    )


def _unmet_parents(
    tx: Connection, user_id: UserId, dag_id: DagId, parents: Sequence[TaskId]
) -> set[TaskId]:
    """Return the parents that have not completed; raise if one has ended without success."""
    if not parents:
        return set()
    rows = read_tasks_to_connect(tx, user_id, parents)
    for parent in parents:
        if rows[parent].dag_id != dag_id:
            raise in_another_graph("depends_on", parent)
        if rows[parent].state in {State.DEAD_LETTERED, State.CANCELLED}:
            raise InvalidRequest(
                "depends_on",
                f"{show_task(parent)} is {rows[parent].state} and will not complete",
                legal="a task that has completed or still can",
            )
    return {parent for parent in parents if rows[parent].state != State.COMPLETED}
