"""Graphs that change after they were submitted: new edges and the boosts that follow from them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.priority import critical_path_weights
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class EdgeRow:
    """`child` waits until `parent` has ended as `condition` requires."""

    parent: UUID
    child: UUID
    condition: str = "success"


def add_edges(tx: Connection, edges: Sequence[EdgeRow]) -> None:
    """Insert edges between existing tasks; the caller holds the lane and has checked for cycles.

    The children must be waiting. A parent that has already ended counts immediately.
    """
    rows = [
        {"parent_id": str(edge.parent), "child_id": str(edge.child), "condition": edge.condition}
        for edge in edges
    ]
    tx.execute(statement("add_edges"), {"edges": json.dumps(rows)})


def edges_of(tx: Connection, user_id: UUID, dag_id: UUID) -> list[tuple[UUID, UUID]]:
    """Return every edge of a graph as (parent, child)."""
    params = {"user_id": user_id, "dag_id": dag_id}
    rows = tx.execute(statement("edges_of_graph"), params)
    return [(row.parent_id, row.child_id) for row in rows]


def update_dependency_boosts(tx: Connection, user_id: UUID, dag_id: UUID) -> None:
    """Recompute how much each waiting task of a graph gains from the work that depends on it."""
    rows = tx.execute(statement("dependency_boosts_of_graph"), {"dag_id": dag_id})
    boosts = {row.id: row.dependency_boost for row in rows}
    index = {task_id: number for number, task_id in enumerate(boosts)}
    pairs = [(index[parent], index[child]) for parent, child in edges_of(tx, user_id, dag_id)]
    weights = critical_path_weights(len(index), pairs)
    changed = [
        {"id": str(task_id), "boost": weight}
        for task_id, weight in zip(boosts, weights, strict=True)
        if weight != boosts[task_id]
    ]
    if changed:
        tx.execute(statement("update_dependency_boosts"), {"weights": json.dumps(changed)})
