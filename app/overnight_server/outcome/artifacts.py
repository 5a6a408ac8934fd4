"""Keeping what a run made for others to read besides its output."""

import json
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection

from overnight.errors import InvalidRequest
from overnight.models.json_values import MAX_DEPTH, check_json
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import ArtifactId, new_artifact_id
from overnight_server.fault_points import fault
from overnight_server.outcome.claim_guard import hold
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class Made:
    """An artifact as its run hands it over; a name is kept once for each task."""

    name: str
    kind: Literal["bytes", "json", "text"]
    content: bytes


@dataclass(frozen=True)
class ArtifactCaps:
    """How much a task may keep."""

    max_bytes: int = 8_000_000
    max_per_task: int = 100

    @classmethod
    def of(cls, settings: Settings) -> "ArtifactCaps":
        """Take the caps from the settings."""
        return cls(settings.max_artifact_bytes, settings.max_artifacts_per_task)


def keep(db: Db, claim: Claim, made: Made, caps: ArtifactCaps) -> ArtifactId:
    """Keep an artifact for whoever holds the claim; the same name again replaces its content.

    Holds the task's own row and no lane: whoever ends the claim waits for it, or comes first and
    leaves nothing to write.
    """
    size = len(made.content)
    if size > caps.max_bytes:
        raise InvalidRequest("content", f"takes {size} bytes", legal=f"at most {caps.max_bytes}")
    _judge(made)
    kept = db.atomically(lambda tx: _keep(tx, claim, made, caps))
    fault("artifact.after_commit")
    return kept


def _judge(made: Made) -> None:
    """Refuse what its readers could not be given: they may be programs in any language."""
    if made.kind == "bytes":
        return
    try:
        text = made.content.decode()
        if made.kind == "json":
            check_json(json.loads(text))
    except UnicodeDecodeError:
        raise InvalidRequest("content", "is no UTF-8", legal="text in UTF-8") from None
    except RecursionError:
        legal = f"at most {MAX_DEPTH} levels"
        raise InvalidRequest("content", "is nested too deep", legal=legal) from None
    except ValueError as error:
        raise InvalidRequest("content", f"is no JSON: {error}", legal="JSON as text") from None


def _keep(tx: Connection, claim: Claim, made: Made, caps: ArtifactCaps) -> ArtifactId:
    holder = hold(tx, claim)
    named = {"task_id": claim.task_id, "name": made.name}
    others = tx.execute(statement("count_artifacts"), named).scalar_one()
    if others >= caps.max_per_task:
        raise InvalidRequest(
            "name", f"the task has {others} artifacts", legal=f"at most {caps.max_per_task} names"
        )
    kept = tx.execute(
        statement("upsert_artifact"),
        {
            **named,
            "artifact_id": new_artifact_id(),
            "user_id": holder.user_id,
            "epoch": claim.epoch,
            "kind": made.kind,
            "size": len(made.content),
            "content": made.content,
        },
    ).scalar_one()
    fault("artifact.before_commit")
    return ArtifactId(kept)
