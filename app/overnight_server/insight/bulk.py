"""Bulk operations: which action was requested for which tasks, and how far it has come."""

from overnight.errors import BulkNotFound
from overnight.models.bulk import BulkOperation
from overnight_server.domain.ids import BulkId, UserId, show_bulk
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def get_bulk(db: Db, user_id: UserId, bulk_id: BulkId) -> BulkOperation:
    """Return one bulk operation; raise BulkNotFound if the user has no such operation."""
    operations = _read_operations(db, user_id, bulk_id=bulk_id, limit=1)
    if not operations:
        raise BulkNotFound
    return operations[0]


def list_bulks(
    db: Db, user_id: UserId, *, limit: int = 50, before: BulkId | None = None
) -> list[BulkOperation]:
    """Return a user's bulk operations, newest first; with `before`, those older than that one."""
    return _read_operations(db, user_id, before=before, limit=limit)


def _read_operations(
    db: Db,
    user_id: UserId,
    *,
    limit: int,
    bulk_id: BulkId | None = None,
    before: BulkId | None = None,
) -> list[BulkOperation]:
    params = {"user_id": user_id, "bulk_id": bulk_id, "before": before, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("view_bulks"), params).mappings().all())
    return [
        BulkOperation(**{**row, "id": show_bulk(row["id"]), "priority_score": row["priority"]})
        for row in rows
    ]
