"""Graphs that change after they were submitted: edges added, and the order weighed anew."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row

from overnight_server.domain.priority import critical_path_weights
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class Link:
    """`child` waits for `parent` to end as the condition says."""

    parent: UUID
    child: UUID
    condition: str = "success"


def add_edges(tx: Connection, links: Sequence[Link]) -> None:
    """Add edges between tasks whose lane is held, which close no circle and whose children wait.

    A parent that has ended already counts at once.
    """
    rows = [
        {"parent_id": str(link.parent), "child_id": str(link.child), "condition": link.condition}
        for link in links
    ]
    tx.execute(statement("add_edges"), {"edges": json.dumps(rows)})


def edges_of(tx: Connection, user_id: UUID, dag_id: UUID) -> list[tuple[UUID, UUID]]:
    """Return every edge of a graph as (parent, child)."""
    named = {"user_id": user_id, "dag_id": dag_id}
    rows = tx.execute(statement("edges_of_graph"), named)
    return [(row.parent_id, row.child_id) for row in rows]


def weigh(tx: Connection, user_id: UUID, dag_id: UUID) -> None:
    """Order a graph's waiting tasks by the work that now waits behind each."""
    stored = {row.id: row.dependency_boost for row in _tasks(tx, dag_id)}
    places = {task: place for place, task in enumerate(stored)}
    pairs = [(places[parent], places[child]) for parent, child in edges_of(tx, user_id, dag_id)]
    weights = critical_path_weights(len(places), pairs)
    changed = [
        {"id": str(task), "boost": weight}
        for task, weight in zip(stored, weights, strict=True)
        if weight != stored[task]
    ]
    if changed:
        tx.execute(statement("weigh"), {"weights": json.dumps(changed)})


def _tasks(tx: Connection, dag_id: UUID) -> Sequence[Row[Any]]:
    return tx.execute(statement("weights_of_graph"), {"dag_id": dag_id}).all()
