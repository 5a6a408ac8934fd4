"""Admin routes for budgets: tasks over budget, budgets of graphs and agents.

Only admins can call them; other callers get 404.
"""

from typing import Annotated

from fastapi import APIRouter, Query

from overnight.models.account import ApprovalRequest, ApprovalResult
from overnight.models.admin import BudgetChanged, BudgetSet, UserApproval
from overnight.models.tasks import CancelResult
from overnight_server.api.http.authentication import Admin
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.params import parse_dag_param, parse_task_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.api.routes.admin_keys import LONGEST_LIST, ManyLimit, find_user_id
from overnight_server.control import budgets
from overnight_server.domain.ids import show_dag
from overnight_server.insight.budgets import list_approvals

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/admin", tags=["admin"])


@router.get("/approvals")
def list_all_approvals(
    deps: Injected,
    _caller: Admin,
    user: Annotated[
        str | None, Query(max_length=200, description="Only tasks of this user.")
    ] = None,
    limit: ManyLimit = LONGEST_LIST,
) -> list[UserApproval]:
    """List the tasks that have used up a budget, those that wait longest first."""
    owner = None if user is None else find_user_id(deps, user)
    return list_approvals(deps.admin_db, user_id=owner, limit=limit)


@router.post("/approvals/{task_id}/approve", response_model=ApprovalResult)
def approve_any_task(
    task_id: str, body: ApprovalRequest, deps: Injected, caller: Admin
) -> budgets.RaisedBudget:
    """Raise the budget that a task has used up, so that the task continues."""
    actor = f"user:{caller.user_id}"
    return budgets.approve(deps.admin_db, parse_task_param(task_id), body.usd, actor=actor)


@router.post("/approvals/{task_id}/stop")
def stop_any_task(task_id: str, deps: Injected, caller: Admin) -> CancelResult:
    """Cancel a task that has used up a budget."""
    budgets.stop(deps.admin_db, parse_task_param(task_id), actor=f"user:{caller.user_id}")
    return CancelResult(state="cancelled")


@router.put("/dags/{dag_id}/budget")
def set_budget_of_dag(dag_id: str, body: BudgetSet, deps: Injected, caller: Admin) -> BudgetChanged:
    """Set what all tasks of a graph together may cost."""
    parsed_id = parse_dag_param(dag_id)
    budgets.set_dag_budget(deps.admin_db, parsed_id, body.usd, actor=f"user:{caller.user_id}")
    return BudgetChanged(id=show_dag(parsed_id), budget_usd=body.usd)


@router.put("/agents/{agent_id}/budget")
def set_budget_of_agent(
    agent_id: str, body: BudgetSet, deps: Injected, caller: Admin
) -> BudgetChanged:
    """Set what the runs of an agent may cost from now on."""
    budgets.set_agent_budget(deps.admin_db, agent_id, body.usd, actor=f"user:{caller.user_id}")
    return BudgetChanged(id=agent_id, budget_usd=body.usd)
