"""Tasks that wait for a larger budget, and what is left of every budget a task draws on."""

from dataclasses import dataclass

from overnight.errors import TaskNotFound
from overnight.models.admin import UserApproval
from overnight_server.domain.budgets import (
    BudgetShortage,
    RemainingBudgets,
    check_budget,
    next_cost,
)
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class TaskBudgets:
    """What a task's next run may cost, what each budget has left, and the first that is short."""

    estimate_usd: float
    purse: RemainingBudgets
    shortage: BudgetShortage | None


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


def budgets_of(db: Db, task_id: TaskId, *, agent_id: str | None = None) -> TaskBudgets:
    """Return what every budget of a task has left; the agent's too if `agent_id` is given.

    Raises TaskNotFound if there is no such task.
    """
    params = {"task_id": task_id, "agent_id": agent_id}
    row = db.atomically(
        lambda tx: tx.execute(statement("view_remaining_budgets"), params).one_or_none()
    )
    if row is None:
        raise TaskNotFound
    estimate = next_cost(row.estimated_cost_usd, row.max_cost_usd, row.cost_usd)
    purse = RemainingBudgets(
        # Nothing was spent yet, so a run that costs nothing may start under any limit.
        task=row.task_left if row.cost_usd > 0 else None,
        dag=row.dag_left,
        agent=row.agent_left,
        night=row.night_left,
    )
    return TaskBudgets(float(estimate), purse, check_budget(estimate, purse))
