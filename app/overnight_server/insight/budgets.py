"""Tasks that ask for a larger budget: one that they used up, or that cannot pay their next run."""

from overnight.models.admin import UserApproval
from overnight_server.domain.ids import UserId, show_task
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def list_approvals(
    db: Db, *, user_id: UserId | None = None, limit: int = 100
) -> list[UserApproval]:
    """Return the tasks that ask for a larger budget, of one user or of all, longest wait first."""
    return read_approvals(db, user_id=user_id, limit=limit)[0]


def read_approvals(
    db: Db, *, user_id: UserId | None = None, limit: int = 100
) -> tuple[list[UserApproval], int]:
    """Return what `list_approvals` returns, and how many such tasks there are in all."""
    params = {"user_id": user_id, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("list_approvals"), params).all())
    approvals = [
        UserApproval(
            task_id=show_task(row.id),
            user=row.user,
            title=row.title,
            type=row.type,
            budget=row.budget,
            needs_usd=row.needs_usd,
            spent_usd=row.spent_usd,
            limit_usd=row.limit_usd,
            cost_usd=row.cost_usd,
            since=row.since,
            raised_by="operator" if row.by_operator else "owner",
            error=row.error,
        )
        for row in rows
    ]
    return approvals, rows[0].of_all if rows else 0
