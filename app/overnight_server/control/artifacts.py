"""Delete an artifact: its row, and its content if no other artifact needs it."""

import contextlib
from functools import partial

from sqlalchemy import Connection

from overnight.errors import ArtifactNotFound, StoreUnavailable
from overnight_server.artifact_store.delete_blobs import delete_if_unneeded
from overnight_server.artifact_store.store import ArtifactStore
from overnight_server.domain.ids import ArtifactId, TaskId, UserId, show_artifact, show_task
from overnight_server.store.after_commit import log_after_commit
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent


def delete_artifact(
    db: Db, user_id: UserId, artifact_id: ArtifactId, store: ArtifactStore | None
) -> None:
    """Delete a visible artifact of a user for good; raise ArtifactNotFound if there is none.

    A task that refers to it reads None. A content that the store does not delete now is left to the
    sweep `blobs`.
    """
    digest = db.atomically(partial(_delete_row, user_id=user_id, artifact_id=artifact_id))
    if digest is not None and store is not None:
        with contextlib.suppress(StoreUnavailable):
            db.atomically(partial(delete_if_unneeded, store, digest))


def _delete_row(tx: Connection, *, user_id: UserId, artifact_id: ArtifactId) -> str | None:
    params = {"user_id": user_id, "artifact_id": artifact_id}
    row = tx.execute(statement("delete_artifact"), params).one_or_none()
    if row is None:
        raise ArtifactNotFound
    log_after_commit(
        tx,
        LogEvent.ARTIFACT_DELETED,
        artifact_id=show_artifact(artifact_id),
        queue_id=show_task(TaskId(row.task_id)),
        actor=f"user:{user_id}",
    )
    digest: str | None = row.digest
    return digest
