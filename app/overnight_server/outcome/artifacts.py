"""Artifacts: contents that a run stores, besides its output, for other tasks and people.

They are staged under the run's claim first. The settle of the run makes them visible, and so does a
task that the run spawns with a reference to one. A run that was lost never settles, so what it
stored is never seen.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection

from overnight.errors import InvalidRequest
from overnight.models.json_values import MAX_DEPTH, check_json
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import ArtifactId, TaskId, new_artifact_id
from overnight_server.fault_points import fault
from overnight_server.outcome.lock_claimed_task import lock_claimed_task
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class NewArtifact:
    """An artifact to store; a task has at most one artifact of a name."""

    name: str
    kind: Literal["bytes", "json", "text"]
    content: bytes


@dataclass(frozen=True)
class ArtifactCaps:
    """How many artifacts a task may store, and how large each may be."""

    max_bytes: int = 8_000_000
    max_per_task: int = 100

    @classmethod
    def of(cls, settings: Settings) -> "ArtifactCaps":
        """Return the caps that the settings give."""
        return cls(settings.max_artifact_bytes, settings.max_artifacts_per_task)


def store_artifact(db: Db, claim: Claim, artifact: NewArtifact, caps: ArtifactCaps) -> ArtifactId:
    """Stage an artifact for the holder of a claim; the same name again replaces its content.

    Locks the task's row but no lane. Whoever ends the claim waits for the row, or came first, and
    then StaleAttempt is raised.
    """
    size = len(artifact.content)
    if size > caps.max_bytes:
        raise InvalidRequest("content", f"takes {size} bytes", legal=f"at most {caps.max_bytes}")
    _check_content(artifact)
    artifact_id = db.atomically(lambda tx: _store(tx, claim, artifact, caps))
    fault("artifact.after_commit")
    return artifact_id


def _check_content(artifact: NewArtifact) -> None:
    """Raise InvalidRequest for text or JSON that programs in other languages could not read."""
    if artifact.kind == "bytes":
        return
    try:
        text = artifact.content.decode()
        if artifact.kind == "json":
            check_json(json.loads(text))
    except UnicodeDecodeError:
        raise InvalidRequest("content", "is not UTF-8", legal="text in UTF-8") from None
    except RecursionError:
        legal = f"at most {MAX_DEPTH} levels"
        raise InvalidRequest("content", "is nested too deep", legal=legal) from None
    except ValueError as error:
        raise InvalidRequest("content", f"is not JSON: {error}", legal="JSON as text") from None


def _store(tx: Connection, claim: Claim, artifact: NewArtifact, caps: ArtifactCaps) -> ArtifactId:
    task = lock_claimed_task(tx, claim)
    params = {"task_id": claim.task_id, "epoch": claim.epoch, "name": artifact.name}
    others = tx.execute(statement("other_artifacts"), params).scalar_one()
    if others >= caps.max_per_task:
        raise InvalidRequest(
            "name", f"the task has {others} artifacts", legal=f"at most {caps.max_per_task} names"
        )
    artifact_id = tx.execute(
        statement("stage_artifact"),
        {
            **params,
            "artifact_id": new_artifact_id(),
            "user_id": task.user_id,
            "kind": artifact.kind,
            "size": len(artifact.content),
            "content": artifact.content,
        },
    ).scalar_one()
    fault("artifact.before_commit")
    return ArtifactId(artifact_id)


def promote_artifacts(
    tx: Connection, task_id: TaskId, epoch: int, only: Sequence[ArtifactId] | None = None
) -> None:
    """Make artifacts of a run visible, all or some; the caller holds the task under its claim."""
    params = {"task_id": task_id, "epoch": epoch, "artifacts": None if only is None else list(only)}
    tx.execute(statement("promote_artifacts"), params)
