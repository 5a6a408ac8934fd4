"""Forking a graph: a new one in which a chosen task and all after it run anew.

What else completed is copied into the new graph, as completed and with its output, but without
attempts, hours or costs. It is copied and not referred to, so that every edge stays within its
graph, a graph's counts and budget are its own, and neither graph changes when something is done to
the other. What neither completed nor is needed stays behind.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from overnight.errors import InvalidRequest, TaskNotFound
from overnight_server.domain.graphs import spawned_by, to_run_again
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
from overnight_server.store import edges as following
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

CONTEXT = "context_refs"


@dataclass(frozen=True)
class Forked:
    """A new graph; `tasks` leads from each old task to its copy, `again` names copies that run.

    `created` False means an earlier request had made it already; then both are empty.
    """

    dag_id: DagId
    tasks: Mapping[TaskId, TaskId]
    again: frozenset[TaskId]
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
) -> Forked:
    """Make a new graph that runs one of the user's tasks and all after it anew.

    The old graph stays as it is. The new one has its title, unless another is given, and its
    budget, of which nothing is spent. Another user's task looks exactly like none; the caps on
    waiting work and on the size of a graph hold as for a submit.
    """

    def work(tx: Connection) -> Forked:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        mine = {"user_id": user_id, "task_id": task_id}
        graph = tx.execute(statement("graph_to_fork"), mine).one_or_none()
        if graph is None:
            raise TaskNotFound
        known = find_dag_by_key(tx, user_id, idempotency_key)
        if known is not None:
            return Forked(known, {}, frozenset(), _origin(tx, user_id, known), created=False)
        old = _read(tx, user_id, DagId(graph.id))
        again = to_run_again(task_id, old.states, old.pairs)
        # Whoever runs anew spawns anew: what it spawned then is neither taken over nor waited for.
        dropped = spawned_by(old.spawners, again)
        if task_id in dropped:
            raise InvalidRequest(
                "task_id",
                f"{show_task(old.spawners[task_id])} spawned it, and would do so again",
                legal="the task that spawned it",
            )
        again -= dropped
        completed = {one for one, state in old.states.items() if state is State.COMPLETED}
        taken = completed - again - dropped
        size = len(again) + len(taken)
        depth = check_caps(tx, user_id, len(again), caps, size=size, field_name="task_id")
        forked = Forked(
            new_dag_id(),
            names := {one: new_task_id() for one in sorted(again | taken)},
            frozenset(names[one] for one in again),
            DagId(graph.id),
        )
        tx.execute(
            statement("insert_dag"),
            {
                "dag_id": forked.dag_id,
                "user_id": user_id,
                "title": title or graph.title,
                "created_by": actor,
                "budget_usd": graph.budget_ceiling_usd,
                "forked_from": graph.id,
                "key": idempotency_key,
            },
        )
        edges = _copy(tx, user_id, old, forked, actor)
        # As if what was taken over had just completed: releases, and cancels what is not needed.
        following.resolve_dependents(tx, [names[one] for one in taken])
        report_dag_added(tx, forked.dag_id, tasks=size, edges=edges, depth=depth)
        fault("intake.before_commit")
        return forked

    forked = db.atomically(work)
    fault("intake.after_commit")
    return forked


def _origin(tx: Connection, user_id: UserId, dag_id: DagId) -> DagId:
    """Return which graph a fork was made from; a graph that is no fork has taken the key."""
    named = {"user_id": user_id, "dag_id": dag_id}
    origin = tx.execute(statement("view_dag"), named).one().forked_from
    if origin is None:
        raise InvalidRequest(
            "idempotency_key", f"{show_dag(dag_id)} was created under it", legal="a key of its own"
        )
    return DagId(origin)


@dataclass(frozen=True)
class _Old:
    """A graph as it stands; `specs` and `refs` are those that speak of other tasks."""

    states: Mapping[TaskId, State]
    spawners: Mapping[TaskId, TaskId]
    edges: Collection[Any]
    specs: Mapping[TaskId, Mapping[str, Any]]
    refs: Mapping[TaskId, Mapping[str, str]]

    @property
    def pairs(self) -> list[tuple[TaskId, TaskId]]:
        """Return the edges as (parent, child)."""
        return [(TaskId(edge.parent_id), TaskId(edge.child_id)) for edge in self.edges]


def _read(tx: Connection, user_id: UserId, dag_id: DagId) -> _Old:
    named = {"user_id": user_id, "dag_id": dag_id}
    rows = tx.execute(statement("tasks_of_graph"), named).all()
    return _Old(
        {TaskId(row.id): State(row.state) for row in rows},
        {TaskId(row.id): TaskId(row.parent_id) for row in rows if row.parent_id is not None},
        tx.execute(statement("edges_of_graph"), named).all(),
        {TaskId(row.id): row.spec for row in tx.execute(statement("specs_of_graph"), named)},
        {TaskId(row.id): row.context_refs for row in tx.execute(statement("refs_of_graph"), named)},
    )


def _copy(tx: Connection, user_id: UserId, old: _Old, forked: Forked, actor: str) -> int:
    names = forked.tasks
    taken = {one for one, new in names.items() if new not in forked.again}
    # What was taken over waits for nobody that runs anew; among themselves it has met already.
    kept = [
        edge
        for edge in old.edges
        if edge.parent_id in names
        and edge.child_id in names
        and (edge.child_id not in taken or edge.parent_id in taken)
    ]
    unmet = Counter(edge.child_id for edge in kept if edge.child_id not in taken)
    shown = {show_task(one): show_task(new) for one, new in names.items()}
    copies = [
        {
            "old_id": str(one),
            "id": str(new),
            "is_copied": one in taken,
            "unmet": unmet[one],
            "spec": repointed(old.specs[one], shown) if one in old.specs else None,
            "context_refs": {
                text: shown.get(whose, whose) for text, whose in old.refs.get(one, {}).items()
            }
            or None,
            # Both were taken over.
            "parent_id": str(names[old.spawners[one]]) if old.spawners.get(one) in names else None,
        }
        for one, new in names.items()
    ]
    links = [
        {
            "parent_id": str(names[edge.parent_id]),
            "child_id": str(names[edge.child_id]),
            "dag_id": str(forked.dag_id),
            "condition": edge.condition,
            "on_unmet": edge.on_unmet,
            "is_met": edge.child_id in taken,
        }
        for edge in kept
    ]
    tx.execute(
        statement("fork_tasks"),
        {"dag_id": forked.dag_id, "created_by": actor, "copies": json.dumps(copies)},
    )
    if links:
        tx.execute(statement("insert_edges"), {"user_id": user_id, "edges": json.dumps(links)})
    return len(links)


def repointed(spec: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a spec whose references to tasks name their copies.

    >>> repointed({"context_refs": ["task:task_A:output", "artifact:x"]}, {"task_A": "task_B"})
    {'context_refs': ['task:task_B:output', 'artifact:x']}
    """
    return {**spec, CONTEXT: _repointed(spec[CONTEXT], names)}


def _repointed(value: object, names: Mapping[str, str]) -> object:
    match value:
        case str():
            kind, _, rest = value.partition(":")
            name, colon, what = rest.partition(":")
            return f"{kind}:{names[name]}{colon}{what}" if name in names else value
        case list():
            return [_repointed(one, names) for one in value]
        case dict():
            return {key: _repointed(one, names) for key, one in value.items()}
        case _:
            return value
