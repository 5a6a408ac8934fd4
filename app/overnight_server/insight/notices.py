"""What a user should hear of once: hours running out, tasks that keep failing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from overnight_server.domain.ids import UserId, show_task
from overnight_server.store.db import Db
from overnight_server.store.models import Notice


@dataclass(frozen=True)
class NoticeView:
    """One notice; `id` grows, so a reader can go on where it stopped."""

    id: int
    kind: str
    subject: str
    task_id: str | None
    detail: Mapping[str, Any]
    at: datetime


def list_notices(
    db: Db, user_id: UserId, *, before: int | None = None, limit: int = 50
) -> list[NoticeView]:
    """Return a user's newest notices."""
    question = (
        select(Notice.id, Notice.kind, Notice.subject, Notice.task_id, Notice.detail, Notice.at)
        .where(Notice.user_id == user_id)
        .order_by(Notice.id.desc())
        .limit(limit)
    )
    if before is not None:
        question = question.where(Notice.id < before)
    rows = db.atomically(lambda tx: tx.execute(question).all())
    return [
        NoticeView(
            row.id,
            row.kind,
            row.subject,
            None if row.task_id is None else show_task(row.task_id),
            row.detail,
            row.at,
        )
        for row in rows
    ]
