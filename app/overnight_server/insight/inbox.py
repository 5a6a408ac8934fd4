"""The inbox as an operator sees it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from overnight.models.json_values import sound_value
from overnight_server.domain.ids import show_task
from overnight_server.mask import mask_names
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class InboxView:
    """One row: what was left, and what became of it; no outcome means that it waits.

    What cannot be read as a task's fields is shown as the text it is.
    """

    id: int
    user: str
    key_id: str
    title: str | None
    task: Mapping[str, Any] | str
    arrived_at: datetime
    due_at: datetime
    held_by: str | None
    outcome: str | None
    settled_at: datetime | None
    settled_by: str | None
    task_id: str | None
    error: str | None


def list_inbox(db: Db, *, resolved: bool = False, limit: int = 50) -> list[InboxView]:
    """Return what waits and what was refused, oldest first; with `resolved` all there ever was."""
    values = {"resolved": resolved, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_inbox"), values).mappings().all())
    return [
        InboxView(**{**row, "task": _read(row["task"]), "task_id": _shown(row["task_id"])})
        for row in rows
    ]


def _read(left: str) -> Mapping[str, Any] | str:
    try:
        fields = sound_value(json.loads(left))
    except (ValueError, RecursionError):
        return left
    shown: Mapping[str, Any] = mask_names(fields)
    return shown


def _shown(task_id: UUID | None) -> str | None:
    return None if task_id is None else show_task(task_id)
