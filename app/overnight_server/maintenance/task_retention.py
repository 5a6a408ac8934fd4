"""Deletes ended tasks, and graphs whose tasks have all ended, with everything that is about them.

A walk reads tasks or graphs in the order of their ids, and so of their creation, up to the first
that is too young. Each transaction locks some that may go, looks for what still needs them, and
deletes the others. What another transaction has locked is left to a later round.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Row, TextClause

from overnight_server.domain.ids import ArtifactId, TaskId, show_artifact, show_task
from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement

# Tasks of one transaction; a graph is deleted as a whole.
BATCH: Final = 500
# How many graphs one look-up returns.
GRAPHS: Final = 100
FIRST_ID: Final = UUID(int=0)


@dataclass(frozen=True)
class TaskTerms:
    """How many days tasks are kept, by name: `tasks`, `tasks.free`, `tasks.cancelled`."""

    days: Mapping[str, int]

    @property
    def shortest(self) -> timedelta:
        """Any task is kept so long."""
        return timedelta(days=min(self.days.values()))

    @property
    def parameters(self) -> dict[str, object]:
        """The terms as parameters of statements."""
        return {"days": json.dumps(dict(self.days)), "shortest": self.shortest}


@dataclass(frozen=True)
class Walk:
    """A walk through the ids after one of them. A dry run only counts what would be deleted."""

    terms: TaskTerms
    limit: PassLimit
    after: UUID = FIRST_ID
    is_dry_run: bool = False


@dataclass(frozen=True)
class Walked:
    """How many tasks a walk has deleted, and the last id it read; None at the end of the walk."""

    deleted: int
    position: UUID | None


Delete = Callable[[Connection, Sequence[UUID]], int]


def delete_lone_tasks(db: Db, walk: Walk) -> Walked:
    """Delete tasks that were submitted alone."""

    def delete(tx: Connection, tasks: Sequence[UUID]) -> int:
        params = {"tasks": tasks, **walk.terms.parameters}
        locked = tx.execute(statement("lock_tasks_to_prune"), params).all()
        kept = _in_use(tx, locked)
        gone = [row.id for row in locked if row.id not in kept]
        if gone and not walk.is_dry_run:
            tx.execute(statement("delete_tasks"), {"tasks": gone})
        return len(gone)

    return _walk(db, walk, statement("next_tasks_to_prune"), BATCH, delete)


def delete_graphs(db: Db, walk: Walk) -> Walked:
    """Delete graphs of which no task is kept any longer."""

    def delete(tx: Connection, dags: Sequence[UUID]) -> int:
        params = {"dags": dags, **walk.terms.parameters}
        graphs = tx.execute(statement("lock_graphs_to_prune"), params).all()
        params["dags"] = [graph.id for graph in graphs]
        locked = tx.execute(statement("lock_tasks_of_graphs_to_prune"), params).all()
        kept = _in_use(tx, locked)
        due: dict[UUID, int] = defaultdict(int)
        for row in locked:
            due[row.dag_id] += row.is_due and row.id not in kept
        gone = [graph for graph in graphs if due[graph.id] == graph.total]
        if gone and not walk.is_dry_run:
            tx.execute(statement("delete_graphs"), {"dags": [graph.id for graph in gone]})
        return sum(graph.total for graph in gone)

    return _walk(db, walk, statement("next_graphs_to_prune"), GRAPHS, delete)


def _walk(db: Db, walk: Walk, step: TextClause, size: int, delete: Delete) -> Walked:
    deleted, position = 0, walk.after
    while True:
        params = {"after_id": position, "limit": size, **walk.terms.parameters}
        rows = db.atomically(partial(_read, step, params))
        for chunk in _chunks(rows):
            ids = [row.id for row in chunk if row.is_candidate]
            if ids:
                deleted += db.atomically(partial(_call, delete, ids))
            position = chunk[-1].id
            if walk.limit.is_over:
                return Walked(deleted, position)
        if len(rows) < size:
            return Walked(deleted, None)


def _read(step: TextClause, params: Mapping[str, object], tx: Connection) -> Sequence[Row[Any]]:
    return tx.execute(step, params).all()


def _call(delete: Delete, ids: Sequence[UUID], tx: Connection) -> int:
    return delete(tx, ids)


def _chunks(rows: Sequence[Row[Any]]) -> Iterator[list[Row[Any]]]:
    """Divide rows into chunks of about BATCH tasks."""
    chunk: list[Row[Any]] = []
    tasks = 0
    for row in rows:
        chunk.append(row)
        tasks += row.total
        if tasks >= BATCH:
            yield chunk
            chunk, tasks = [], 0
    if chunk:
        yield chunk


def _in_use(tx: Connection, locked: Sequence[Row[Any]]) -> Collection[UUID]:
    """Return those of the locked tasks that must stay."""
    if not locked:
        return ()
    params = {"tasks": [row.id for row in locked], "dags": list({row.dag_id for row in locked})}
    kept = set(tx.execute(statement("tasks_in_use"), params).scalars())
    owners: dict[str, UUID] = {show_task(TaskId(row.id)): row.id for row in locked}
    for artifact in tx.execute(statement("artifacts_of_tasks"), params):
        owners[show_artifact(ArtifactId(artifact.id))] = artifact.task_id
    shown = tx.execute(
        statement("references_that_may_be_read"), {**params, "shown": list(owners)}
    ).scalars()
    return kept | {owners[text] for text in shown if text in owners}
