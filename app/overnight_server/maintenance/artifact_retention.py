"""Deletes artifacts of tasks that ended longer ago than their retention.

Their blobs are left to the sweep `blobs`.
"""

from datetime import timedelta
from functools import partial
from typing import Final

from sqlalchemy import Connection

from overnight_server.domain.ids import ArtifactId, MalformedId, UserId, parse_artifact
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement

# Small, because a content in a row takes time to delete, and the user's tasks wait for the lane.
BATCH: Final = 20


def delete_old_artifacts(db: Db, *, retention: timedelta) -> int:
    """Delete artifacts whose task ended longer ago than `retention`; return how many.

    Those to which a task refers that has not ended are kept. A transaction deletes artifacts of one
    user, whose lane it holds. A pass ends after some seconds, and the next one goes on.
    """
    total, seen, limit = 0, list[UserId](), PassLimit()
    while not limit.is_over:
        user_id = _next_user(db, retention, seen)
        if user_id is None:
            break
        deleted = db.atomically(partial(_delete, user_id=user_id, retention=retention))
        total += deleted
        if deleted < BATCH:
            seen.append(user_id)
    return total


def _next_user(db: Db, retention: timedelta, seen: list[UserId]) -> UserId | None:
    params = {"older_than": retention, "seen": seen}
    user_id = db.atomically(lambda tx: tx.scalar(statement("user_with_old_artifacts"), params))
    return None if user_id is None else UserId(user_id)


def _delete(tx: Connection, *, user_id: UserId, retention: timedelta) -> int:
    lanes.lock(tx, [user_id])
    params = {
        "user_id": user_id,
        "older_than": retention,
        "needed": _referred(tx, user_id),
        "limit": BATCH,
    }
    return int(tx.execute(statement("delete_old_artifacts"), params).scalar_one())


def _referred(tx: Connection, user_id: UserId) -> list[ArtifactId]:
    """Return the artifacts to which open tasks of a user refer."""
    shown = tx.execute(statement("referred_by_open_tasks"), {"user_id": user_id}).scalars()
    artifacts = []
    for text in shown:
        try:
            artifacts.append(parse_artifact(text))
        except MalformedId:
            continue  # the id of a task
    return artifacts
