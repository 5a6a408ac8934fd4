"""Tasks that failed for good, with everything a person needs to judge them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from overnight.errors import TaskNotFound
from overnight_server.domain.ids import TaskId, UserId, show_dag, show_task
from overnight_server.mask import mask_names
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# Groups are made of so many of the newest; whoever has more has other worries.
LOOKED_AT = 10_000


@dataclass(frozen=True)
class DeadLetterView:
    """One dead letter; `failure_history` has an entry for every attempt that was spent."""

    id: int
    task_id: str
    dag_id: str
    user: str
    title: str
    type: str
    payload: Mapping[str, Any]
    attempts: int
    failure_reason: str | None
    error: str | None
    fingerprint: str
    failure_history: list[dict[str, Any]]
    total_cost_usd: float
    poison_pill: bool
    dead_lettered_at: datetime
    reviewed: bool
    resolution: str | None
    resolved_at: datetime | None
    resolved_by: str | None
    note: str | None


@dataclass(frozen=True)
class DeadLetterGroupView:
    """Open dead letters that failed in the same way; `task_ids` names the latest of them."""

    fingerprint: str
    type: str
    failure_reason: str | None
    error: str | None
    count: int
    total_cost_usd: float
    first_at: datetime
    last_at: datetime
    task_ids: list[str]


def list_dead_letters(
    db: Db,
    *,
    user_id: UserId | None = None,
    resolved: bool = False,
    fingerprint: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[DeadLetterView]:
    """Return the newest dead letters, of one user or of all; resolved ones only if asked for."""
    return _read(
        db,
        user_id=user_id,
        task_id=None,
        resolved=resolved,
        limit=limit,
        fingerprint=fingerprint,
        before_id=before,
    )


def group_dead_letters(
    db: Db, *, user_id: UserId | None = None, limit: int = 50
) -> list[DeadLetterGroupView]:
    """Return the open dead letters by how they failed, the most frequent way first."""
    asked = {"user_id": user_id, "look": LOOKED_AT, "limit": limit}
    rows = db.atomically(
        lambda tx: tx.execute(statement("group_dead_letters"), asked).mappings().all()
    )
    return [
        DeadLetterGroupView(
            **{
                **row,
                "total_cost_usd": float(row["total_cost_usd"]),
                "task_ids": [show_task(one) for one in row["task_ids"]],
            }
        )
        for row in rows
    ]


def get_dead_letter(db: Db, task_id: TaskId, *, user_id: UserId | None = None) -> DeadLetterView:
    """Return a task's newest dead letter, resolved or not."""
    letters = _read(db, user_id=user_id, task_id=task_id, resolved=True, limit=1)
    if not letters:
        raise TaskNotFound
    return letters[0]


def _read(
    db: Db,
    *,
    user_id: UserId | None,
    task_id: TaskId | None,
    resolved: bool,
    limit: int,
    fingerprint: str | None = None,
    before_id: int | None = None,
) -> list[DeadLetterView]:
    asked = {
        "user_id": user_id,
        "task_id": task_id,
        "resolved": resolved,
        "limit": limit,
        "fingerprint": fingerprint,
        "before_id": before_id,
    }
    rows = db.atomically(
        lambda tx: tx.execute(statement("view_dead_letters"), asked).mappings().all()
    )
    return [_view(dict(row)) for row in rows]


def _view(row: Mapping[str, Any]) -> DeadLetterView:
    same = dict(row)
    return DeadLetterView(
        task_id=show_task(same.pop("task_id")),
        dag_id=show_dag(same.pop("dag_id")),
        user=same.pop("user_name"),
        total_cost_usd=float(same.pop("total_cost_usd")),
        payload=mask_names(same.pop("payload")),
        **same,
    )
