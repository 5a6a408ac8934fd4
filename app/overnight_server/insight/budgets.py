"""Tasks that have used up a budget and wait for approval of a larger one."""

from overnight.models.admin import UserApproval
from overnight_server.domain.ids import UserId, show_task
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def list_approvals(
    db: Db, *, user_id: UserId | None = None, limit: int = 100
) -> list[UserApproval]:
    """Return the tasks that wait for a larger budget, of one user or of all, longest wait first."""
    params = {"user_id": user_id, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("list_approvals"), params).all())
    return [
        UserApproval(
            task_id=show_task(row.id),
            user=row.user,
            title=row.title,
            type=row.type,
            budget=row.awaits_budget,
            spent_usd=row.spent_usd,
            limit_usd=row.limit_usd,
            cost_usd=row.cost_usd,
            since=row.since,
            error=row.error,
        )
        for row in rows
    ]
