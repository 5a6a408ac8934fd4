"""Fork a graph: create a new graph in which one task and all tasks after it run again.

Other completed tasks are copied into the new graph as completed, with their outputs but without
attempts, hours and costs. They are copied so that every edge stays inside its graph, each graph has
its own counts and budget, and a change to one graph does not affect the other. Tasks that have not
completed and do not come after the chosen task are not copied.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from overnight.errors import InvalidRequest, TaskNotFound
from overnight_server.domain.graphs import spawned_by, tasks_to_rerun
from overnight_server.domain.ids import (
    DagId,
    TaskId,
    UserId,
    new_dag_id,
    new_task_id,
    show_dag,
    show_task,
)
from overnight_server.domain.lifecycle import State
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps, check_caps
from overnight_server.intake.submit import find_dag_by_key, report_dag_added
from overnight_server.store import edges, lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

REFERENCES = "context_refs"


@dataclass(frozen=True)
class ForkedDag:
    """A new graph; `copies` maps each old task to its copy, `rerun` holds the copies that run.

    `created` False means that an earlier request under its key created it; both are then empty.
    """

    dag_id: DagId
    copies: Mapping[TaskId, TaskId]
    rerun: frozenset[TaskId]
    forked_from: DagId
    created: bool = True


def fork(
    db: Db,
    user_id: UserId,
    task_id: TaskId,
    caps: Caps,
    *,
    actor: str,
    title: str | None = None,
    idempotency_key: str | None = None,
) -> ForkedDag:
    """Create a graph that runs one of the user's tasks and all tasks after it again.

    The old graph is not changed. The new graph has its title, unless another is given, and its
    budget, of which nothing is spent. The same idempotency key again returns the first fork. Raises
    TaskNotFound if the user has no such task; caps apply as for a submit.
    """

    def work(tx: Connection) -> ForkedDag:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        params = {"user_id": user_id, "task_id": task_id}
        graph = tx.execute(statement("graph_to_fork"), params).one_or_none()
        if graph is None:
            raise TaskNotFound
        existing = find_dag_by_key(tx, user_id, idempotency_key)
        if existing is not None:
            origin = _origin(tx, user_id, existing)
            return ForkedDag(existing, {}, frozenset(), origin, created=False)
        old = _read_graph(tx, user_id, DagId(graph.id))
        rerun = tasks_to_rerun(task_id, old.states, old.pairs)
        # A task that runs again spawns again: its earlier children are not copied.
        dropped = spawned_by(old.spawners, rerun)
        if task_id in dropped:
            raise InvalidRequest(
                "task_id",
                f"{show_task(old.spawners[task_id])} spawned it, and would spawn it again",
                legal="the task that spawned it",
            )
        rerun -= dropped
        completed = {task for task, state in old.states.items() if state is State.COMPLETED}
        copied = completed - rerun - dropped
        size = len(rerun) + len(copied)
        depth = check_caps(tx, user_id, len(rerun), caps, size=size, field_name="task_id")
        forked = ForkedDag(
            new_dag_id(),
            copies := {task: new_task_id() for task in sorted(rerun | copied)},
            frozenset(copies[task] for task in rerun),
            DagId(graph.id),
        )
        tx.execute(
            statement("insert_dag"),
            {
                "dag_id": forked.dag_id,
                "user_id": user_id,
                "title": title or graph.title,
                "created_by": None,
                "budget_usd": graph.budget_ceiling_usd,
                "forked_from": graph.id,
                "key": idempotency_key,
            },
        )
        edge_count = _copy(tx, user_id, old, forked)
        # As if the copied tasks had just completed: their dependents become ready or are cancelled.
        edges.resolve_dependents(tx, [copies[task] for task in copied])
        report_dag_added(tx, forked.dag_id, tasks=size, edges=edge_count, depth=depth)
        fault("intake.before_commit")
        return forked

    forked = db.atomically(work)
    fault("intake.after_commit")
    return forked


def _origin(tx: Connection, user_id: UserId, dag_id: DagId) -> DagId:
    """Return the graph that a fork was made from; raise if the key belongs to another graph."""
    params = {"user_id": user_id, "dag_id": dag_id}
    origin = tx.execute(statement("view_dag"), params).one().forked_from
    if origin is None:
        raise InvalidRequest(
            "idempotency_key", f"{show_dag(dag_id)} was created under it", legal="a new key"
        )
    return DagId(origin)


@dataclass(frozen=True)
class _OldGraph:
    """The graph to fork; `specs` and `refs` are those that refer to other tasks."""

    states: Mapping[TaskId, State]
    spawners: Mapping[TaskId, TaskId]
    edges: Collection[Any]
    specs: Mapping[TaskId, Mapping[str, Any]]
    refs: Mapping[TaskId, Mapping[str, str]]

    @property
    def pairs(self) -> list[tuple[TaskId, TaskId]]:
        """Return the edges as (parent, child)."""
        return [(TaskId(edge.parent_id), TaskId(edge.child_id)) for edge in self.edges]


def _read_graph(tx: Connection, user_id: UserId, dag_id: DagId) -> _OldGraph:
    params = {"user_id": user_id, "dag_id": dag_id}
    rows = tx.execute(statement("tasks_of_graph"), params).all()
    return _OldGraph(
        {TaskId(row.id): State(row.state) for row in rows},
        {TaskId(row.id): TaskId(row.parent_id) for row in rows if row.parent_id is not None},
        tx.execute(statement("edges_of_graph"), params).all(),
        {TaskId(row.id): row.spec for row in tx.execute(statement("specs_of_graph"), params)},
        {
            TaskId(row.id): row.context_refs
            for row in tx.execute(statement("refs_of_graph"), params)
        },
    )


def _copy(tx: Connection, user_id: UserId, old: _OldGraph, forked: ForkedDag) -> int:
    """Insert the copies of tasks and edges; return how many edges were copied."""
    copies = forked.copies
    completed = {task for task, copy in copies.items() if copy not in forked.rerun}
    # A completed copy waits for nothing: edges to it from a task that runs again are dropped. Edges
    # between two completed copies are kept and count as met.
    kept = [
        edge
        for edge in old.edges
        if edge.parent_id in copies
        and edge.child_id in copies
        and (edge.child_id not in completed or edge.parent_id in completed)
    ]
    unmet = Counter(edge.child_id for edge in kept if edge.child_id not in completed)
    shown = {show_task(task): show_task(copy) for task, copy in copies.items()}
    task_rows = [
        {
            "old_id": str(task),
            "id": str(copy),
            "is_copied": task in completed,
            "unmet": unmet[task],
            "spec": repointed(old.specs[task], shown) if task in old.specs else None,
            "context_refs": {
                text: shown.get(target, target) for text, target in old.refs.get(task, {}).items()
            }
            or None,
            # A child is copied only together with its parent.
            "parent_id": (
                str(copies[old.spawners[task]]) if old.spawners.get(task) in copies else None
            ),
        }
        for task, copy in copies.items()
    ]
    edge_rows = [
        {
            "parent_id": str(copies[edge.parent_id]),
            "child_id": str(copies[edge.child_id]),
            "dag_id": str(forked.dag_id),
            "condition": edge.condition,
            "on_unmet": edge.on_unmet,
            "is_met": edge.child_id in completed,
        }
        for edge in kept
    ]
    tx.execute(
        statement("fork_tasks"),
        {"dag_id": forked.dag_id, "copies": json.dumps(task_rows)},
    )
    if edge_rows:
        params = {"user_id": user_id, "edges": json.dumps(edge_rows)}
        tx.execute(statement("insert_edges"), params)
    return len(edge_rows)


def repointed(spec: Mapping[str, Any], copies: Mapping[str, str]) -> dict[str, Any]:
    """Return a spec whose references to tasks refer to their copies.

    >>> repointed({"context_refs": ["task:task_A:output", "artifact:x"]}, {"task_A": "task_B"})
    {'context_refs': ['task:task_B:output', 'artifact:x']}
    """
    return {**spec, REFERENCES: _repointed(spec[REFERENCES], copies)}


def _repointed(value: object, copies: Mapping[str, str]) -> object:
    match value:
        case str():
            kind, _, rest = value.partition(":")
            task, colon, part = rest.partition(":")
            return f"{kind}:{copies[task]}{colon}{part}" if task in copies else value
        case list():
            return [_repointed(item, copies) for item in value]
        case dict():
            return {key: _repointed(item, copies) for key, item in value.items()}
        case _:
            return value
