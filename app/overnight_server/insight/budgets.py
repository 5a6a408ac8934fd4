"""Who asks for money, and what is left of every budget a task draws on."""

from dataclasses import dataclass
from datetime import datetime

from overnight.errors import TaskNotFound
from overnight_server.domain.budgets import Purse, Shortage, check_budget, next_cost
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class ApprovalView:
    """One task that has used up a budget, and how much of it was spent."""

    task_id: str
    user: str
    title: str
    type: str
    budget: str
    spent_usd: float
    limit_usd: float | None
    cost_usd: float
    since: datetime
    error: str | None


@dataclass(frozen=True)
class MoneyView:
    """What a task's next run is thought to cost, what is left, and the first that cannot pay."""

    estimate_usd: float
    purse: Purse
    shortage: Shortage | None


def list_approvals(
    db: Db, *, user_id: UserId | None = None, limit: int = 100
) -> list[ApprovalView]:
    """Return the tasks that wait for more money, of one user or of all, the longest first."""
    asked = {"user_id": user_id, "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("list_approvals"), asked).all())
    return [
        ApprovalView(
            task_id=show_task(row.id),
            user=row.user,
            title=row.title,
            type=row.type,
            budget=row.awaits_budget,
            spent_usd=float(row.spent_usd),
            limit_usd=None if row.limit_usd is None else float(row.limit_usd),
            cost_usd=float(row.cost_usd),
            since=row.since,
            error=row.error,
        )
        for row in rows
    ]


def money_of(db: Db, task_id: TaskId, *, agent_id: str | None = None) -> MoneyView:
    """Return how a task stands with every budget, an agent's among them if one is named."""
    asked = {"task_id": task_id, "agent_id": agent_id}
    row = db.atomically(lambda tx: tx.execute(statement("view_purse"), asked).one_or_none())
    if row is None:
        raise TaskNotFound
    estimate = next_cost(row.estimated_cost_usd, row.max_cost_usd, row.cost_usd)
    purse = Purse(
        # A ceiling that nothing was spent of yet lets a free run begin, whatever it is.
        task=row.task_left if row.cost_usd > 0 else None,
        dag=row.dag_left,
        agent=row.agent_left,
        night=row.night_left,
    )
    return MoneyView(float(estimate), purse, check_budget(estimate, purse))
