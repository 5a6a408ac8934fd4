"""What runs made for others to read, as their owner sees it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from overnight.errors import ArtifactNotFound
from overnight_server.domain.artifacts import read_content
from overnight_server.domain.ids import ArtifactId, TaskId, UserId, show_artifact, show_task
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class ArtifactView:
    """One artifact without its content."""

    id: str
    task_id: str
    name: str
    kind: str
    size: int
    created_at: datetime


def list_artifacts(db: Db, user_id: UserId, task_id: TaskId) -> list[ArtifactView]:
    """Return the artifacts of one of the user's tasks, by name."""
    named = {"user_id": user_id, "task_id": task_id}
    rows = db.atomically(lambda tx: tx.execute(statement("view_artifacts"), named).all())
    return [_view(row) for row in rows]


def get_artifact(db: Db, user_id: UserId, artifact_id: ArtifactId) -> tuple[ArtifactView, Any]:
    """Return one artifact and its content; another user's looks exactly like none."""
    named = {"user_id": user_id, "artifact_id": artifact_id}
    row = db.atomically(lambda tx: tx.execute(statement("view_artifact"), named).one_or_none())
    if row is None:
        raise ArtifactNotFound
    return _view(row), read_content(row.kind, bytes(row.content))


def _view(row: Any) -> ArtifactView:  # noqa: ANN401 - a row of one of the statements above
    return ArtifactView(
        show_artifact(row.id),
        show_task(row.task_id),
        row.name,
        row.kind,
        row.size,
        row.created_at,
    )
