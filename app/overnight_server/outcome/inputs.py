"""What a run may read: outputs of the tasks before it, of those it spawned, and artifacts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from overnight_server.domain.artifacts import read_content
from overnight_server.domain.ids import (
    TaskId,
    UserId,
    parse_artifact,
    parse_task,
    show_task,
)
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

ARTIFACT_PREFIX = "art_"


@dataclass(frozen=True)
class ChildView:
    """A task that another spawned, and what has become of it."""

    task_id: TaskId
    key: str
    title: str
    type: str
    state: str
    output: Any
    failure_reason: str | None
    error: str | None


def inputs_of(db: Db, user_id: UserId, task_id: TaskId) -> dict[str, Any]:
    """Return the outputs a task may read.

    Those of the tasks it waited for go by their name in the graph, or by their id where they have
    none or share it; those it refers to by the reference as it was written.
    """
    return db.atomically(lambda tx: _inputs(tx, user_id, task_id))


def children_of(db: Db, task_id: TaskId, only: Sequence[TaskId] | None = None) -> list[ChildView]:
    """Return what a task has spawned, in order; of all it is asked for, only its own are found."""
    named = {"task_id": task_id, "tasks": None if only is None else list(only)}
    rows = db.atomically(lambda tx: tx.execute(statement("children_of"), named).all())
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
    found: dict[str, Any] = {}
    for row in tx.execute(statement("inputs_of"), {"task_id": task_id}):
        by_name = row.name is not None and row.name not in found
        found[row.name if by_name else show_task(row.id)] = row.output
    written = tx.execute(statement("refs_of"), {"task_id": task_id}).scalar_one_or_none() or {}
    return found | _referred(tx, user_id, written)


def _referred(tx: Connection, user_id: UserId, written: dict[str, str]) -> dict[str, Any]:
    artifacts = {text: parse_artifact(one) for text, one in written.items() if _is_artifact(one)}
    tasks = {text: parse_task(one) for text, one in written.items() if not _is_artifact(one)}
    values: dict[Any, Any] = {}
    if tasks:
        named = {"user_id": user_id, "tasks": list(tasks.values())}
        values |= {row.id: row.output for row in tx.execute(statement("outputs_of"), named)}
    if artifacts:
        named = {"user_id": user_id, "artifacts": list(artifacts.values())}
        rows = tx.execute(statement("contents_of"), named)
        values |= {row.id: read_content(row.kind, bytes(row.content)) for row in rows}
    return {text: values.get(one) for text, one in (tasks | artifacts).items()}


def _is_artifact(shown: str) -> bool:
    return shown.startswith(ARTIFACT_PREFIX)
