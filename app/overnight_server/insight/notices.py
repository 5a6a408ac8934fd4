"""Notices: what a user is told once, such as hours running out or tasks that keep failing."""

from sqlalchemy import select

from overnight.models.account import Notice
from overnight_server.domain.ids import UserId, show_task
from overnight_server.store import models
from overnight_server.store.db import Db


def list_notices(
    db: Db, user_id: UserId, *, before: int | None = None, limit: int = 50
) -> list[Notice]:
    """Return a user's newest notices; `before` is the id of a notice to continue from."""
    table = models.NoticeRow
    query = (
        select(table.id, table.kind, table.subject, table.task_id, table.detail, table.at)
        .where(table.user_id == user_id)
        .order_by(table.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(table.id < before)
    rows = db.atomically(lambda tx: tx.execute(query).all())
    return [
        Notice(
            id=row.id,
            kind=row.kind,
            subject=row.subject,
            task_id=None if row.task_id is None else show_task(row.task_id),
            detail=row.detail,
            at=row.at,
        )
        for row in rows
    ]
