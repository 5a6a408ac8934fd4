"""Artifacts: what runs stored for other tasks and for people to read."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from overnight.errors import ArtifactNotFound
from overnight.models.account import Artifact
from overnight_server.artifact_store.store import ArtifactStore, read_all, read_parts
from overnight_server.domain.ids import ArtifactId, TaskId, UserId, show_artifact, show_task
from overnight_server.domain.references import read_content
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def list_artifacts(db: Db, user_id: UserId, task_id: TaskId) -> list[Artifact]:
    """Return the artifacts of one of the user's tasks without their content, ordered by name."""
    params = {"user_id": user_id, "task_id": task_id}
    rows = db.atomically(lambda tx: tx.execute(statement("view_artifacts"), params).all())
    return [_artifact(row) for row in rows]


@dataclass(frozen=True)
class StoredContent:
    """The content of an artifact, in its row or in the store.

    `version` changes when a later run of the task replaces it.
    """

    version: str
    kind: str
    content: bytes | None
    digest: str | None
    store: ArtifactStore | None

    def parts(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from `start` up to but not including `end`; raise StoreMissing."""
        return read_parts(self.content, self.digest, self.store, start, end)

    def value(self) -> Any:  # noqa: ANN401 - the type depends on the kind
        """Return the content in the type in which it was stored."""
        return read_content(self.kind, read_all(self.content, self.digest, self.store))


def get_artifact(
    db: Db, user_id: UserId, artifact_id: ArtifactId, store: ArtifactStore | None = None
) -> tuple[Artifact, StoredContent]:
    """Return one artifact and its content; raise ArtifactNotFound if there is none."""
    params = {"user_id": user_id, "artifact_id": artifact_id}
    row = db.atomically(lambda tx: tx.execute(statement("view_artifact"), params).one_or_none())
    if row is None:
        raise ArtifactNotFound
    version = f"{row.epoch}-{row.created_at.timestamp():.6f}"
    return _artifact(row), StoredContent(version, row.kind, row.content, row.digest, store)


def _artifact(row: Row[*tuple[Any, ...]]) -> Artifact:
    return Artifact(
        id=show_artifact(row.id),
        task_id=show_task(row.task_id),
        name=row.name,
        kind=row.kind,
        size=row.size,
        created_at=row.created_at,
    )
