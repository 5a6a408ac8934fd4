"""Artifacts: contents that a run stores, besides its output, for other tasks and people.

They are staged under the run's claim first. The settle of the run makes them visible, and so does a
task that the run spawns with a reference to one. A run that was lost never settles, so what it
stored is never seen.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, BinaryIO, Literal

from sqlalchemy import Connection, Row

from overnight.errors import InvalidRequest
from overnight.models.json_values import MAX_DEPTH, check_json
from overnight_server.artifact_store.store import ArtifactStore, BlobTooLarge
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import ArtifactId, TaskId, new_artifact_id
from overnight_server.fault_points import fault
from overnight_server.outcome.lock_claimed_task import lock_claimed_task
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

#: A content of at most this size is kept in the row, also if there is a store.
INLINE_BYTES = 64 * 1024


@dataclass(frozen=True)
class NewArtifact:
    """An artifact to store; a task has at most one artifact of a name.

    A content that is not in memory is given as a file that can be read twice; its kind is bytes.
    """

    name: str
    kind: Literal["bytes", "json", "text"]
    content: bytes | BinaryIO


@dataclass(frozen=True)
class ArtifactCaps:
    """How many artifacts a task may store, how large each may be, and how large all together."""

    max_bytes: int = 8_000_000
    max_per_task: int = 100
    max_total_bytes: int = 1_000_000_000

    @classmethod
    def of(cls, settings: Settings) -> "ArtifactCaps":
        """Return the caps that the settings give."""
        return cls(
            settings.max_artifact_bytes,
            settings.max_artifacts_per_task,
            settings.max_artifact_bytes_per_task,
        )


@dataclass(frozen=True)
class _Kept:
    """Where a content is: in memory until it is in the row, or in the store."""

    size: int
    content: bytes | None = None
    digest: str | None = None


class _BlobGone(Exception):
    """The blob was deleted between its put and its row, because no artifact needed it."""


def store_artifact(
    db: Db,
    claim: Claim,
    artifact: NewArtifact,
    caps: ArtifactCaps,
    store: ArtifactStore | None = None,
) -> ArtifactId:
    """Stage an artifact for the holder of a claim; the same name again replaces its content.

    A content above INLINE_BYTES goes to the store, if there is one. Locks the task's row but no
    lane. Whoever ends the claim waits for the row, or came first, and then StaleAttempt is raised.
    """
    while True:
        kept = _keep(artifact, caps, store)
        try:
            artifact_id = db.atomically(
                partial(_stage, claim=claim, artifact=artifact, kept=kept, caps=caps, store=store)
            )
        except _BlobGone:
            continue
        fault("artifact.after_commit")
        return artifact_id


def _keep(artifact: NewArtifact, caps: ArtifactCaps, store: ArtifactStore | None) -> _Kept:
    """Put a large content into the store, read a small one; raise InvalidRequest if too large."""
    if isinstance(artifact.content, bytes):
        content = artifact.content
        _check_size(len(content), caps)
        _check_content(artifact.kind, content)
    else:
        artifact.content.seek(0)
        longest = caps.max_bytes if store is None else INLINE_BYTES
        content = artifact.content.read(longest + 1)
    if store is None or len(content) <= INLINE_BYTES:
        _check_size(len(content), caps)
        return _Kept(len(content), content=content)
    stream = BytesIO(content) if isinstance(artifact.content, bytes) else artifact.content
    stream.seek(0)
    try:
        blob = store.put(stream, max_bytes=caps.max_bytes)
    except BlobTooLarge:
        raise _too_large(f"more than {caps.max_bytes}", caps) from None
    return _Kept(blob.size, digest=blob.digest)


def _check_size(size: int, caps: ArtifactCaps) -> None:
    if size > caps.max_bytes:
        raise _too_large(str(size), caps)


def _too_large(size: str, caps: ArtifactCaps) -> InvalidRequest:
    return InvalidRequest("content", f"takes {size} bytes", legal=f"at most {caps.max_bytes}")


def _check_content(kind: str, content: bytes) -> None:
    """Raise InvalidRequest for text or JSON that programs in other languages could not read."""
    if kind == "bytes":
        return
    try:
        text = content.decode()
        if kind == "json":
            check_json(json.loads(text))
    except UnicodeDecodeError:
        raise InvalidRequest("content", "is not UTF-8", legal="text in UTF-8") from None
    except RecursionError:
        legal = f"at most {MAX_DEPTH} levels"
        raise InvalidRequest("content", "is nested too deep", legal=legal) from None
    except ValueError as error:
        raise InvalidRequest("content", f"is not JSON: {error}", legal="JSON as text") from None


def _stage(
    tx: Connection,
    *,
    claim: Claim,
    artifact: NewArtifact,
    kept: _Kept,
    caps: ArtifactCaps,
    store: ArtifactStore | None,
) -> ArtifactId:
    task = lock_claimed_task(tx, claim)
    params = {"task_id": claim.task_id, "epoch": claim.epoch, "name": artifact.name}
    _check_caps(tx.execute(statement("other_artifacts"), params).one(), kept, caps)
    if store is not None and kept.digest is not None:
        # Whoever deletes blobs that no row needs waits for this row, or has deleted the blob.
        tx.execute(statement("lock_blob"), {"digest": kept.digest})
        if not store.has(kept.digest):
            raise _BlobGone
    values = {
        "artifact_id": new_artifact_id(),
        "user_id": task.user_id,
        "kind": artifact.kind,
        **vars(kept),
    }
    artifact_id = tx.execute(statement("stage_artifact"), params | values).scalar_one()
    fault("artifact.before_commit")
    return ArtifactId(artifact_id)


def _check_caps(others: Row[Any], kept: _Kept, caps: ArtifactCaps) -> None:
    """Raise InvalidRequest if the task would have too many artifacts, or too large ones."""
    if others.number >= caps.max_per_task:
        raise InvalidRequest(
            "name",
            f"the task has {others.number} artifacts",
            legal=f"at most {caps.max_per_task} names",
        )
    if others.size + kept.size > caps.max_total_bytes:
        raise InvalidRequest(
            "content",
            f"takes {kept.size} bytes, and the task's other artifacts {others.size}",
            legal=f"at most {caps.max_total_bytes} together",
        )


def promote_artifacts(
    tx: Connection, task_id: TaskId, epoch: int, only: Sequence[ArtifactId] | None = None
) -> None:
    """Make artifacts of a run visible, all or some; the caller holds the task under its claim."""
    params = {"task_id": task_id, "epoch": epoch, "artifacts": None if only is None else list(only)}
    tx.execute(statement("promote_artifacts"), params)
