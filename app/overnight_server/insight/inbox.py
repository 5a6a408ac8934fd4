"""The inbox table: tasks that programs inserted within their own database transactions."""

import json
from typing import Any
from uuid import UUID

from overnight.models.admin import InboxRow
from overnight.models.json_values import check_json
from overnight_server.domain.ids import show_task
from overnight_server.mask import mask_names
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def list_inbox(db: Db, *, resolved: bool = False, limit: int = 50) -> list[InboxRow]:
    """Return the rows that wait or were refused, oldest first; with `resolved`, all rows."""
    params = {"resolved": resolved, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_inbox"), params).mappings().all())
    return [
        InboxRow(**{**row, "task": _fields(row["task"]), "task_id": _show(row["task_id"])})
        for row in rows
    ]


def _fields(text: str) -> dict[str, Any] | str:
    """Return the task's fields with secrets masked, or the text if it is not a JSON object."""
    try:
        fields = check_json(json.loads(text))
    except (ValueError, RecursionError):
        return text
    return mask_names(fields) if isinstance(fields, dict) else text


def _show(task_id: UUID | None) -> str | None:
    return None if task_id is None else show_task(task_id)
