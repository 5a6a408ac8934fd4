"""Bulk operations as their owner sees them: what was asked for, and how far it has got."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from overnight.errors import BulkNotFound
from overnight_server.domain.ids import BulkId, UserId, show_bulk
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class BulkView:
    """One bulk operation with the names the wire uses."""

    id: str
    action: str
    filter: Mapping[str, Any]
    priority_score: int | None
    state: str
    total: int
    done: int
    changed: int
    skipped: int
    refused: Mapping[str, int]
    created_by: str
    created_at: datetime
    finished_at: datetime | None


def get_bulk(db: Db, user_id: UserId, bulk_id: BulkId) -> BulkView:
    """Return one bulk operation; another user's looks exactly like none."""
    found = _read(db, user_id, bulk_id=bulk_id, limit=1)
    if not found:
        raise BulkNotFound
    return found[0]


def list_bulks(
    db: Db, user_id: UserId, *, limit: int = 50, before: BulkId | None = None
) -> list[BulkView]:
    """Return a user's bulk operations, newest first; those before another if one is named."""
    return _read(db, user_id, before=before, limit=limit)


def _read(
    db: Db,
    user_id: UserId,
    *,
    limit: int,
    bulk_id: BulkId | None = None,
    before: BulkId | None = None,
) -> list[BulkView]:
    named = {"user_id": user_id, "bulk_id": bulk_id, "before": before, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_bulks"), named).mappings().all())
    return [
        BulkView(
            **{
                **{name: value for name, value in row.items() if name != "priority"},
                "id": show_bulk(row["id"]),
                "priority_score": row["priority"],
            }
        )
        for row in rows
    ]
