"""What a run may read: outputs of its parents, of its children, and artifacts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from overnight_server.artifact_store.store import ArtifactStore, read_all
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


class InputsTooLarge(ValueError):
    """The artifacts that a task reads are larger than its reader may load at once."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"its artifacts have {size} bytes; legal: at most {limit} together")


def inputs_of(
    db: Db,
    user_id: UserId,
    task_id: TaskId,
    store: ArtifactStore | None = None,
    *,
    max_artifact_bytes: int | None = None,
) -> dict[str, Any]:
    """Return the outputs that a task may read.

    The keys are the names of its parents in the graph, or their ids if they have no name or share
    it, and the texts of its references. Raises InputsTooLarge before larger artifacts are read.
    """
    outputs, artifacts = db.atomically(lambda tx: _inputs(tx, user_id, task_id, max_artifact_bytes))
    # After the transaction, because a store may be slow.
    return outputs | {
        text: None if row is None else _content(row, store) for text, row in artifacts.items()
    }


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


def _inputs(
    tx: Connection, user_id: UserId, task_id: TaskId, max_bytes: int | None
) -> tuple[dict[str, Any], dict[str, Row[Any] | None]]:
    """Return the outputs that a task may read, and the rows of the artifacts."""
    outputs: dict[str, Any] = {}
    for row in tx.execute(statement("inputs_of"), {"task_id": task_id}):
        by_name = row.name is not None and row.name not in outputs
        outputs[row.name if by_name else show_task(row.id)] = row.output
    references = tx.execute(statement("refs_of"), {"task_id": task_id}).scalar_one_or_none() or {}
    outputs |= _referred_outputs(tx, user_id, references)
    return outputs, _referred_artifacts(tx, user_id, references, max_bytes)


def _referred_outputs(
    tx: Connection, user_id: UserId, references: dict[str, str]
) -> dict[str, Any]:
    tasks = {
        text: parse_task(shown) for text, shown in references.items() if not _is_artifact(shown)
    }
    if not tasks:
        return {}
    params = {"user_id": user_id, "tasks": list(tasks.values())}
    values = {row.id: row.output for row in tx.execute(statement("outputs_of"), params)}
    return {text: values.get(task_id) for text, task_id in tasks.items()}


def _referred_artifacts(
    tx: Connection, user_id: UserId, references: dict[str, str], max_bytes: int | None
) -> dict[str, Row[Any] | None]:
    artifacts = {
        text: parse_artifact(shown) for text, shown in references.items() if _is_artifact(shown)
    }
    if not artifacts:
        return {}
    params = {"user_id": user_id, "artifacts": list(artifacts.values())}
    if max_bytes is not None:
        size = tx.execute(statement("size_of_artifacts"), params).scalar_one()
        if size > max_bytes:
            raise InputsTooLarge(size, max_bytes)
    rows = {row.id: row for row in tx.execute(statement("contents_of"), params)}
    return {text: rows.get(artifact_id) for text, artifact_id in artifacts.items()}


def _content(row: Row[Any], store: ArtifactStore | None) -> Any:  # noqa: ANN401 - by its kind
    return read_content(row.kind, read_all(row.content, row.digest, store))


def _is_artifact(shown: str) -> bool:
    return shown.startswith(ARTIFACT_PREFIX)
