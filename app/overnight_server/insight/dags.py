"""Graphs: their status, their tasks and edges, and their longest chain."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping

from overnight.errors import DagNotFound
from overnight.graphs.shape import ends_of, longest_chain
from overnight.models.dags import (
    CriticalPath,
    Dag,
    DagCounts,
    DagCreated,
    DagEdgeState,
    DagStatus,
    DagSummary,
    DagTaskState,
)
from overnight.models.enums import TaskStatus
from overnight_server.domain.ids import DagId, TaskId, UserId, show_dag, show_task
from overnight_server.domain.lifecycle import State
from overnight_server.mask import mask_names
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def get_dag(db: Db, user_id: UserId, dag_id: DagId, *, with_tasks: bool = True) -> Dag:
    """Return one graph; raise DagNotFound if the user has no such graph.

    Without `with_tasks` the tasks, edges and what is computed from them are left out.
    """
    return db.atomically(lambda tx: _read(tx, user_id, dag_id, with_tasks=with_tasks))


def list_dags(
    db: Db,
    user_id: UserId,
    *,
    status: str | None = None,
    limit: int = 50,
    before: DagId | None = None,
) -> list[DagSummary]:
    """Return the user's newest graphs of several tasks; with `before`, those older than it."""
    params = {"user_id": user_id, "status": status, "before": before, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_dags"), params).mappings().all())
    return [DagSummary(**_summary(row)) for row in rows]


def outline_of(
    dag_id: DagId, title: str, tasks: Mapping[str, TaskId], edges: Sequence[tuple[int, int]]
) -> DagCreated:
    """Return the response to the submit of a graph, without a query.

    `edges` are pairs of positions in `tasks`, parent first.
    """
    names = list(tasks)
    roots, leaves = ends_of(len(names), edges)
    return DagCreated(
        id=show_dag(dag_id),
        title=title,
        status=DagStatus.RUNNING,
        tasks={name: show_task(task_id) for name, task_id in tasks.items()},
        roots=[names[position] for position in roots],
        leaves=[names[position] for position in leaves],
        critical_path=_critical_path(names, edges),
    )


def get_outline(db: Db, user_id: UserId, dag_id: DagId) -> DagCreated:
    """Return the response to a repeated submit of a graph: the graph as it is now."""
    dag = get_dag(db, user_id, dag_id)
    tasks: dict[str, str] = {}
    for task in dag.tasks:
        # The first task keeps its name: a task that was spawned later may have the same one.
        name = task.name if task.name and task.name not in tasks else task.id
        tasks[name] = task.id
    return DagCreated(
        id=dag.id,
        title=dag.title,
        status=dag.status,
        tasks=tasks,
        roots=dag.roots,
        leaves=dag.leaves,
        critical_path=dag.critical_path or CriticalPath(tasks=[], weight=0),
    )


def _read(tx: Connection, user_id: UserId, dag_id: DagId, *, with_tasks: bool) -> Dag:
    params = {"user_id": user_id, "dag_id": dag_id}
    dag = tx.execute(statement("view_dag"), params).mappings().one_or_none()
    if dag is None:
        raise DagNotFound
    if not with_tasks:
        return Dag(**_summary(dag))
    tasks = [_task(row) for row in tx.execute(statement("view_dag_tasks"), params).mappings()]
    edges = [
        DagEdgeState(
            parent=show_task(row.parent_id),
            child=show_task(row.child_id),
            condition=row.condition,
            on_unmet=row.on_unmet,
            satisfied=row.satisfied,
        )
        for row in tx.execute(statement("view_dag_edges"), params)
    ]
    names = [task.name or task.id for task in tasks]
    position = {task.id: number for number, task in enumerate(tasks)}
    pairs = [
        (position[edge.parent], position[edge.child])
        for edge in edges
        if edge.parent in position and edge.child in position
    ]
    roots, leaves = ends_of(len(names), pairs)
    return Dag(
        **_summary(dag),
        roots=[names[number] for number in roots],
        leaves=[names[number] for number in leaves],
        critical_path=_critical_path(names, pairs) if names else None,
        tasks=tasks,
        edges=edges,
    )


def _critical_path(names: Sequence[str], edges: Sequence[tuple[int, int]]) -> CriticalPath:
    chain = [names[position] for position in longest_chain(len(names), edges)]
    return CriticalPath(tasks=chain, weight=len(chain))


def _summary(row: RowMapping) -> dict[str, Any]:
    """Return the fields of DagSummary."""
    return {
        "id": show_dag(row["id"]),
        "title": row["title"],
        "status": row["status"],
        "counts": DagCounts(
            total=row["total"],
            open=row["open"],
            completed=row["completed"],
            failed=row["dead"],
            cancelled=row["cancelled"],
        ),
        "budget_usd": row["budget_ceiling_usd"],
        "spent_usd": row["spent_usd"],
        "created_by": row["created_by"],
        "created_at": row["created_at"],
        "finished_at": row["finished_at"],
        "forked_from": None if row["forked_from"] is None else show_dag(row["forked_from"]),
    }


def _task(row: RowMapping) -> DagTaskState:
    state = State(row["state"])
    return DagTaskState(
        id=show_task(row["id"]),
        name=row["name"],
        title=row["title"],
        type=row["type"],
        status=TaskStatus(state.status),
        state=state.value,
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        started_at=row["started_at"],
        completed_at=row["finished_at"],
        run_seconds=row["run_seconds"],
        progress=mask_names(row["progress"]),
        failure_reason=row["failure_reason"],
        error=row["error"],
        cost_usd=row["cost_usd"],
        wait_reason=row["wait_reason"],
    )
