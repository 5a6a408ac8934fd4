"""Graphs as their owner sees them: how they stand, what is in them, what their longest chain is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from overnight.errors import DagNotFound
from overnight.graphs.shape import ends_of, longest_chain
from overnight_server.domain.ids import DagId, TaskId, UserId, show_dag, show_task
from overnight_server.domain.lifecycle import State
from overnight_server.mask import mask_names
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# How a graph stands while anything in it can move.
GOES_ON = "running"


@dataclass(frozen=True)
class CountsView:
    """How many tasks of a graph stand where."""

    total: int
    open: int
    completed: int
    failed: int
    cancelled: int


@dataclass(frozen=True)
class DagTaskView:
    """One task of a graph."""

    id: str
    name: str | None
    title: str
    type: str
    status: str
    state: str
    attempts: int
    max_attempts: int
    started_at: datetime | None
    completed_at: datetime | None
    run_seconds: float | None
    progress: Mapping[str, Any] | None
    failure_reason: str | None
    error: str | None
    cost_usd: float
    wait_reason: str | None


@dataclass(frozen=True)
class EdgeView:
    """One dependency, by the ids of its tasks."""

    parent: str
    child: str
    condition: str
    on_unmet: str
    satisfied: bool


@dataclass(frozen=True)
class ChainView:
    """The longest chain of a graph."""

    tasks: list[str]
    weight: int


@dataclass(frozen=True)
class DagView:
    """One graph; roots, leaves and longest chain by name where tasks have one, else by id."""

    id: str
    title: str
    status: str
    counts: CountsView
    budget_usd: float | None
    spent_usd: float
    created_by: str
    created_at: datetime
    finished_at: datetime | None
    forked_from: str | None = None
    roots: list[str] = field(default_factory=list)
    leaves: list[str] = field(default_factory=list)
    critical_path: ChainView | None = None
    tasks: list[DagTaskView] = field(default_factory=list)
    edges: list[EdgeView] = field(default_factory=list)


@dataclass(frozen=True)
class OutlineView:
    """What the maker of a graph is told: ids by name, where it begins and ends."""

    id: str
    title: str
    status: str
    tasks: dict[str, str]
    roots: list[str]
    leaves: list[str]
    critical_path: ChainView


def get_dag(db: Db, user_id: UserId, dag_id: DagId, *, with_tasks: bool = True) -> DagView:
    """Return one of the user's graphs; another user's looks exactly like none."""
    return db.atomically(lambda tx: _read(tx, user_id, dag_id, with_tasks=with_tasks))


def list_dags(
    db: Db,
    user_id: UserId,
    *,
    status: str | None = None,
    limit: int = 50,
    before: DagId | None = None,
) -> list[DagView]:
    """Return the user's newest graphs of several tasks, those made before `before` if given."""
    asked = {"user_id": user_id, "status": status, "before": before, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_dags"), asked).mappings().all())
    return [_view(dict(row)) for row in rows]


def outline_of(
    dag_id: DagId, title: str, tasks: Mapping[str, TaskId], pairs: Sequence[tuple[int, int]]
) -> OutlineView:
    """Return what the maker of a graph is told as it goes in; `pairs` are places in `tasks`."""
    names = list(tasks)
    roots, leaves = ends_of(len(names), pairs)
    chain = [names[task] for task in longest_chain(len(names), pairs)]
    return OutlineView(
        id=show_dag(dag_id),
        title=title,
        status=GOES_ON,
        tasks={name: show_task(task) for name, task in tasks.items()},
        roots=[names[task] for task in roots],
        leaves=[names[task] for task in leaves],
        critical_path=ChainView(chain, len(chain)),
    )


def get_outline(db: Db, user_id: UserId, dag_id: DagId) -> OutlineView:
    """Return what the maker of a graph was told, as it holds now."""
    dag = get_dag(db, user_id, dag_id)
    tasks: dict[str, str] = {}
    for task in dag.tasks:
        # A name stays with the first that bore it: what was spawned later may be called the same.
        name = task.name if task.name and task.name not in tasks else task.id
        tasks[name] = task.id
    return OutlineView(
        id=dag.id,
        title=dag.title,
        status=dag.status,
        tasks=tasks,
        roots=dag.roots,
        leaves=dag.leaves,
        critical_path=dag.critical_path or ChainView([], 0),
    )


def _read(tx: Connection, user_id: UserId, dag_id: DagId, *, with_tasks: bool) -> DagView:
    mine = {"user_id": user_id, "dag_id": dag_id}
    row = tx.execute(statement("view_dag"), mine).mappings().one_or_none()
    if row is None:
        raise DagNotFound
    if not with_tasks:
        return _view(dict(row))
    tasks = [_task(dict(one)) for one in tx.execute(statement("view_dag_tasks"), mine).mappings()]
    edges = [
        EdgeView(
            parent=show_task(one.parent_id),
            child=show_task(one.child_id),
            condition=one.condition,
            on_unmet=one.on_unmet,
            satisfied=one.satisfied,
        )
        for one in tx.execute(statement("view_dag_edges"), mine)
    ]
    return _view(dict(row), tasks, edges)


def _view(
    row: Mapping[str, Any], tasks: Sequence[DagTaskView] = (), edges: Sequence[EdgeView] = ()
) -> DagView:
    names = [task.name or task.id for task in tasks]
    place = {task.id: number for number, task in enumerate(tasks)}
    pairs = [
        (place[edge.parent], place[edge.child])
        for edge in edges
        if edge.parent in place and edge.child in place
    ]
    roots, leaves = ends_of(len(names), pairs)
    chain = [names[task] for task in longest_chain(len(names), pairs)]
    budget = row["budget_ceiling_usd"]
    return DagView(
        id=show_dag(row["id"]),
        title=row["title"],
        status=row["status"],
        counts=CountsView(
            row["total"], row["open"], row["completed"], row["dead"], row["cancelled"]
        ),
        budget_usd=None if budget is None else float(budget),
        spent_usd=float(row["spent_usd"]),
        created_by=row["created_by"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        forked_from=None if row["forked_from"] is None else show_dag(row["forked_from"]),
        roots=[names[task] for task in roots],
        leaves=[names[task] for task in leaves],
        critical_path=ChainView(chain, len(chain)) if chain else None,
        tasks=list(tasks),
        edges=list(edges),
    )


def _task(row: Mapping[str, Any]) -> DagTaskView:
    state = State(row["state"])
    return DagTaskView(
        id=show_task(row["id"]),
        name=row["name"],
        title=row["title"],
        type=row["type"],
        status=state.status.value,
        state=state.value,
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        started_at=row["started_at"],
        completed_at=row["finished_at"],
        run_seconds=row["run_seconds"],
        progress=mask_names(row["progress"]),
        failure_reason=row["failure_reason"],
        error=row["error"],
        cost_usd=float(row["cost_usd"]),
        wait_reason=row["wait_reason"],
    )
