"""What a run may read: outputs of its parents, of its children, and artifacts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from overnight_server.domain.ids import (
    TaskId,
    UserId,
    parse_artifact,
    parse_task,
    show_task,
)
from overnight_server.domain.references import read_content
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

ARTIFACT_PREFIX = "art_"


@dataclass(frozen=True)
class ChildView:
    """A spawned task and its state."""

    task_id: TaskId
    key: str
    title: str
    type: str
    state: str
    output: Any
    failure_reason: str | None
    error: str | None


def inputs_of(db: Db, user_id: UserId, task_id: TaskId) -> dict[str, Any]:
    """Return the outputs that a task may read.

    The keys are the names of its parents in the graph, or their ids if they have no name or share
    it, and the texts of its references.
    """
    return db.atomically(lambda tx: _inputs(tx, user_id, task_id))


def children_of(db: Db, task_id: TaskId, only: Sequence[TaskId] | None = None) -> list[ChildView]:
    """Return the children of a task in order, all or those of `only` that are its children."""
    params = {"task_id": task_id, "tasks": None if only is None else list(only)}
    rows = db.atomically(lambda tx: tx.execute(statement("children_of"), params).all())
    return [
        ChildView(
            TaskId(row.id),
            row.spawn_key,
            row.title,
            row.type,
            row.state,
            row.output,
            row.failure_reason,
            row.error,
        )
        for row in rows
    ]


def _inputs(tx: Connection, user_id: UserId, task_id: TaskId) -> dict[str, Any]:
    outputs: dict[str, Any] = {}
    for row in tx.execute(statement("inputs_of"), {"task_id": task_id}):
        by_name = row.name is not None and row.name not in outputs
        outputs[row.name if by_name else show_task(row.id)] = row.output
    references = tx.execute(statement("refs_of"), {"task_id": task_id}).scalar_one_or_none() or {}
    return outputs | _referred(tx, user_id, references)


def _referred(tx: Connection, user_id: UserId, references: dict[str, str]) -> dict[str, Any]:
    artifacts = {
        text: parse_artifact(shown) for text, shown in references.items() if _is_artifact(shown)
    }
    tasks = {
        text: parse_task(shown) for text, shown in references.items() if not _is_artifact(shown)
    }
    values: dict[Any, Any] = {}
    if tasks:
        params = {"user_id": user_id, "tasks": list(tasks.values())}
        values |= {row.id: row.output for row in tx.execute(statement("outputs_of"), params)}
    if artifacts:
        params = {"user_id": user_id, "artifacts": list(artifacts.values())}
        rows = tx.execute(statement("contents_of"), params)
        values |= {row.id: read_content(row.kind, bytes(row.content)) for row in rows}
    return {text: values.get(key) for text, key in (tasks | artifacts).items()}


def _is_artifact(shown: str) -> bool:
    return shown.startswith(ARTIFACT_PREFIX)
