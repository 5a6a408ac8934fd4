"""Artifacts: contents that a run stores, besides its output, for other tasks and people.

They are staged under the run's claim first. The settle of the run makes them visible, and so does a
task that the run spawns with a reference to one. A run that was lost never settles, so what it
stored is never seen.

The settings and the plan of the task's user limit the size. A database trigger counts what a user
has stored, visible or not, so the limit costs the same however much that is.
"""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Any, BinaryIO, Literal

from sqlalchemy import Connection, Row

from overnight.errors import InvalidRequest, StaleAttempt, StorageLimitReached, StoreUnavailable
from overnight.models.enums import PlanTier
from overnight.models.json_values import MAX_DEPTH, check_json
from overnight_server.artifact_store.delete_blobs import delete_if_unneeded
from overnight_server.artifact_store.store import ArtifactStore, BlobTooLarge
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import ArtifactId, TaskId, UserId, new_artifact_id
from overnight_server.domain.plans import ARTIFACT_LIMITS, BYTES_PER_MB, storage_limit_mb
from overnight_server.fault_points import fault
from overnight_server.outcome.lock_claimed_task import lock_claimed_task
from overnight_server.settings import Settings
from overnight_server.store.db import DATABASE_ERRORS, Db
from overnight_server.store.statements import statement

#: A content of at most this size is kept in the row, also if there is a store.
INLINE_BYTES = 64 * 1024
# How often a content is put that the store does not have afterwards.
_MAX_PUTS = 5


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
    """How many artifacts a task may store, how large each may be, and how large all together.

    `max_stored_bytes` is the limit for all artifacts of the user; None means no limit. `plan` names
    the plan whose limits are included.
    """

    max_bytes: int = 8_000_000
    max_per_task: int = 100
    max_total_bytes: int = 1_000_000_000
    max_stored_bytes: int | None = None
    plan: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> "ArtifactCaps":
        """Return the caps that the settings give."""
        return cls(
            settings.max_artifact_bytes,
            settings.max_artifacts_per_task,
            settings.max_artifact_bytes_per_task,
        )

    def within(self, plan: PlanTier, own_storage_mb: int | None) -> "ArtifactCaps":
        """Return these caps, lowered to those of a plan and of a user's own storage."""
        limits, stored_mb = ARTIFACT_LIMITS[plan], storage_limit_mb(plan, own_storage_mb)
        return replace(
            self,
            max_bytes=min(self.max_bytes, limits.one_mb * BYTES_PER_MB),
            max_total_bytes=min(self.max_total_bytes, limits.task_mb * BYTES_PER_MB),
            max_stored_bytes=None if stored_mb is None else stored_mb * BYTES_PER_MB,
            plan=plan.value,
        )


@dataclass(frozen=True)
class _Kept:
    """Where a content is: in memory until it is in the row, or in the store."""

    size: int
    content: bytes | None = None
    digest: str | None = None


@dataclass(frozen=True)
class _Staged:
    """The id of an artifact, and the blob whose place its content took, if any."""

    artifact_id: ArtifactId
    replaced: str | None


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
    Raises InvalidRequest for a content that is too large, StorageLimitReached if the user's
    artifacts are, and StoreUnavailable if the store fails.
    """
    caps = caps_of_user(db, claim, caps)
    for _ in range(_MAX_PUTS):
        kept = _keep(artifact, caps, store)
        stage = partial(_stage, claim=claim, artifact=artifact, kept=kept, caps=caps, store=store)
        try:
            staged = db.atomically(stage)
        except _BlobGone:
            continue
        except Exception:
            _discard(db, store, kept.digest)
            raise
        fault("artifact.after_commit")
        if staged.replaced != kept.digest:
            _discard(db, store, staged.replaced)
        return staged.artifact_id
    raise StoreUnavailable("it does not have what was put there")


def caps_of_user(db: Db, claim: Claim, caps: ArtifactCaps) -> ArtifactCaps:
    """Return the caps, lowered to those of the user of a claim's task."""
    params = {"task_id": claim.task_id}
    row = db.atomically(lambda tx: tx.execute(statement("artifact_limits"), params).one_or_none())
    if row is None:
        raise StaleAttempt
    return caps.within(PlanTier(row.plan_tier), row.artifact_storage_mb)


def _discard(db: Db, store: ArtifactStore | None, digest: str | None) -> None:
    """Delete a blob that no row needs now; what fails here is left to the sweep `blobs`.

    Otherwise a run could fill the store with contents that count for nobody.
    """
    if store is None or digest is None:
        return
    with contextlib.suppress(StoreUnavailable, *DATABASE_ERRORS):
        db.atomically(partial(delete_if_unneeded, store, digest))


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
    legal = f"at most {caps.max_bytes} for one artifact{_by_plan(caps)}"
    return InvalidRequest("content", f"takes {size} bytes", legal=legal)


def _by_plan(caps: ArtifactCaps) -> str:
    """Return the part of a message that says whose caps they are."""
    return "" if caps.plan is None else f" of a user of the plan {caps.plan}"


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
) -> _Staged:
    """Write the row of an artifact whose content is kept."""
    if store is not None and kept.digest is not None:
        _hold_blob(tx, store, kept.digest)
    task = lock_claimed_task(tx, claim)
    params = {"task_id": claim.task_id, "epoch": claim.epoch, "name": artifact.name}
    _check_task_caps(tx.execute(statement("other_artifacts"), params).one(), kept, caps)
    values = {
        "artifact_id": new_artifact_id(),
        "user_id": task.user_id,
        "kind": artifact.kind,
        **vars(kept),
    }
    row = tx.execute(statement("stage_artifact"), params | values).one()
    _check_storage(tx, task.user_id, kept, caps)
    fault("artifact.before_commit")
    return _Staged(ArtifactId(row.artifact_id), row.replaced)


def _hold_blob(tx: Connection, store: ArtifactStore, digest: str) -> None:
    """Lock a blob until its row is stored; raise _BlobGone if the store does not have it.

    Before the task is locked, because the store may be slow: a heartbeat must not wait for it.
    """
    tx.execute(statement("lock_blob"), {"digest": digest})
    if not store.has(digest):
        raise _BlobGone


def _check_task_caps(others: Row[Any], kept: _Kept, caps: ArtifactCaps) -> None:
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
            legal=f"at most {caps.max_total_bytes} together for one task{_by_plan(caps)}",
        )


def _check_storage(tx: Connection, user_id: UserId, kept: _Kept, caps: ArtifactCaps) -> None:
    """Raise StorageLimitReached if the user's artifacts, with the new one, take too much room.

    Others who store for the user wait for the counter, so two cannot use the same room.
    """
    if caps.max_stored_bytes is None:
        return
    stored = tx.execute(statement("stored_bytes"), {"user_id": user_id}).scalar_one()
    if stored > caps.max_stored_bytes:
        raise StorageLimitReached(stored - kept.size, kept.size, caps.max_stored_bytes)


def promote_artifacts(
    tx: Connection, task_id: TaskId, epoch: int, only: Sequence[ArtifactId] | None = None
) -> None:
    """Make artifacts of a run visible, all or some; the caller holds the task under its claim."""
    params = {"task_id": task_id, "epoch": epoch, "artifacts": None if only is None else list(only)}
    tx.execute(statement("promote_artifacts"), params)
