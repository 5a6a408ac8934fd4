"""What each claim of a task came to."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from overnight.errors import TaskNotFound
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class AttemptView:
    """One claim; `spent` says whether it used up a try."""

    epoch: int
    pool: str
    agent: str
    granted_seconds: int
    claimed_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    spent: bool
    error_class: str | None
    error: str | None
    cost_usd: float
    tokens_used: Mapping[str, Any]


def list_attempts(
    db: Db, user_id: UserId, task_id: TaskId, *, before: int | None = None, limit: int = 50
) -> list[AttemptView]:
    """Return a task's claims, the latest first; another user's task looks exactly like none."""
    named = {"user_id": user_id, "task_id": task_id, "before_epoch": before, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_attempts"), named).mappings().all())
    if not rows:
        raise TaskNotFound
    return [_view(dict(row)) for row in rows if row["epoch"] is not None]


def _view(row: dict[str, Any]) -> AttemptView:
    return AttemptView(**{**row, "cost_usd": float(row["cost_usd"])})
