"""Budgets: approve or stop tasks that have used up a budget, and set budgets."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, update

from overnight.errors import (
    AgentNotFound,
    BudgetSetByOperator,
    DagNotFound,
    InvalidRequest,
    NotAwaitingApproval,
    TaskNotFound,
    UserNotFound,
)
from overnight_server.domain.budgets import Budget
from overnight_server.domain.ids import DagId, TaskId, UserId, show_task
from overnight_server.domain.lifecycle import LifecycleEvent, State, sources, target
from overnight_server.outcome.settle import resolve_cancelled
from overnight_server.store import lanes
from overnight_server.store.after_commit import log_after_commit, wake_after_commit
from overnight_server.store.db import Db
from overnight_server.store.models import UserRow
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, emit

# The largest budget that can be set.
MAX_USD = 999_999.0
EXCEEDED = "budget_exceeded"
# A task that a budget stopped is pending; one whose next run no budget can pay is ready.
ASKING = sorted({State.PENDING, State.READY})


@dataclass(frozen=True)
class RaisedBudget:
    """Which budget an approval raised, and how many tasks became ready."""

    budget: Budget
    resumed: int


def approve(
    db: Db,
    task_id: TaskId,
    usd: float,
    *,
    actor: str,
    user_id: UserId | None = None,
    is_operator: bool = False,
) -> RaisedBudget:
    """Raise the budget for which a task asks by `usd`, and make the task ready.

    The raised budget is the task's own, its graph's, or the user's for this night. Other tasks that
    wait for the same budget become ready too. Raises NotAwaitingApproval if the task asks for no
    budget, TaskNotFound for an unknown task, and InvalidRequest for an amount out of range. With a
    `user_id`, another user's task raises TaskNotFound; unless `is_operator`, that user cannot raise
    a budget that an operator set, which raises BudgetSetByOperator. Locks the lane, and wakes the
    dispatchers.
    """
    _check_usd(usd, minimum=0.01)

    def work(tx: Connection) -> RaisedBudget:
        row = _lock_waiting_task(tx, task_id, actor, user_id)
        budget = Budget(row.budget)
        if row.by_operator and user_id is not None and not is_operator:
            raise BudgetSetByOperator(budget)
        if budget is Budget.DAG:
            tx.execute(statement("raise_dag_budget"), {"dag_id": row.dag_id, "usd": usd})
            resumed = _release_waiters(tx, row.user_id, budget, dag_id=row.dag_id)
        elif budget is Budget.NIGHT:
            tx.execute(statement("raise_night_budget"), {"user_id": row.user_id, "usd": usd})
            resumed = _release_waiters(tx, row.user_id, budget)
        else:
            tx.execute(statement("raise_task_budget"), {"task_id": task_id, "usd": usd})
            resumed = _release_waiters(tx, row.user_id, budget, task_id=task_id)
        # A ready task does not move; pools that skipped its lane look at it again.
        lanes.unskip_lane(tx, row.user_id)
        return RaisedBudget(budget, resumed + int(row.state == State.READY))

    approved = db.atomically(work)
    emit(LogEvent.BUDGET_RAISED, budget=approved.budget, usd=usd, actor=actor, task_id=task_id)
    return approved


def stop(db: Db, task_id: TaskId, *, actor: str, user_id: UserId | None = None) -> None:
    """Cancel a task that asks for a larger budget; its reason is `budget_exceeded`.

    Its open children are cancelled with it, and its dependents end or go on as their edges say.
    Locks the lane. Raises NotAwaitingApproval if the task asks for no budget, and TaskNotFound for
    an unknown task or, with a `user_id`, another user's.
    """

    def work(tx: Connection) -> None:
        row = _lock_waiting_task(tx, task_id, actor, user_id)
        tx.execute(
            statement("cancel"),
            {
                "user_id": row.user_id,
                "tasks": [task_id],
                "sources": ASKING,
                "target": target(LifecycleEvent.CANCEL),
                "reason": EXCEEDED,
                "asked_at": None,
            },
        ).one()
        log_after_commit(
            tx, LogEvent.TASK_CANCELLED, queue_id=show_task(task_id), actor=actor, reason=EXCEEDED
        )
        resolve_cancelled(tx, [task_id])

    db.atomically(work)


def set_night_budget(db: Db, user_id: UserId, usd: float | None, *, actor: str) -> None:
    """Set a user's budget for a night, None for no limit; tasks that waited for it become ready.

    It replaces a raise for this night. Locks the lane and wakes the dispatchers. Raises
    InvalidRequest for an amount out of range, and UserNotFound.
    """
    _check_usd(usd)

    def work(tx: Connection) -> None:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        changed = tx.execute(
            update(UserRow)
            .where(UserRow.id == user_id)
            .values(night_budget_usd=usd)
            .returning(UserRow.id)
        )
        if changed.one_or_none() is None:
            raise UserNotFound
        _release_waiters(tx, user_id, Budget.NIGHT)

    db.atomically(work)
    emit(
        LogEvent.BUDGET_SET, budget=Budget.NIGHT, usd=_usd_field(usd), actor=actor, user_id=user_id
    )


def set_dag_budget(db: Db, dag_id: DagId, usd: float | None, *, actor: str) -> None:
    """Set the budget of a graph, None for no limit; tasks that waited for it become ready.

    From then on only operators raise it. Locks the lane and wakes the dispatchers. Raises
    InvalidRequest for an amount out of range, and DagNotFound.
    """
    _check_usd(usd)

    def work(tx: Connection) -> None:
        owner = tx.execute(statement("owner_of_dag"), {"dag_id": dag_id}).scalar_one_or_none()
        if owner is None:
            raise DagNotFound
        lanes.lock(tx, [owner])
        tx.execute(statement("set_actor"), {"actor": actor})
        tx.execute(statement("set_dag_budget"), {"dag_id": dag_id, "usd": usd})
        lanes.unskip_lane(tx, owner)
        _release_waiters(tx, owner, Budget.DAG, dag_id=dag_id)

    db.atomically(work)
    emit(LogEvent.BUDGET_SET, budget=Budget.DAG, usd=_usd_field(usd), actor=actor, dag_id=dag_id)


def set_agent_budget(db: Db, agent_id: str, usd: float | None, *, actor: str) -> None:
    """Set the budget of an agent's future runs, None for no limit.

    Afterwards its pool considers skipped lanes again, and the dispatchers are woken. Raises
    InvalidRequest for an amount out of range, and AgentNotFound.
    """
    _check_usd(usd)

    def work(tx: Connection) -> str:
        tx.execute(statement("set_actor"), {"actor": actor})
        params = {"agent_id": agent_id, "usd": usd}
        pool: str | None = tx.execute(statement("set_agent_budget"), params).scalar_one_or_none()
        if pool is None:
            raise AgentNotFound
        return pool

    # Its pool may have skipped lanes whose tasks cost more than the old budget.
    lanes.unskip_lanes(db, db.atomically(work))
    db.wake()
    emit(
        LogEvent.BUDGET_SET, budget=Budget.AGENT, usd=_usd_field(usd), actor=actor, worker=agent_id
    )


def _lock_waiting_task(
    tx: Connection, task_id: TaskId, actor: str, user_id: UserId | None
) -> Row[Any]:
    """Lock the lane of a task that asks for a budget, and return which budget it is.

    Also sets the actor of the transaction. Raises TaskNotFound and NotAwaitingApproval.
    """
    params = {"task_id": task_id}
    unlocked = tx.execute(statement("budget_requested_by_task"), params).one_or_none()
    if unlocked is None or user_id not in (None, unlocked.user_id):
        raise TaskNotFound
    lanes.lock(tx, [unlocked.user_id])
    tx.execute(statement("set_actor"), {"actor": actor})
    # Read again: the task may have changed before the lane was locked.
    row = tx.execute(statement("budget_requested_by_task"), params).one()
    if row.budget is None:
        raise NotAwaitingApproval(row.state)
    return row


def _release_waiters(
    tx: Connection,
    user_id: UUID,
    budget: Budget,
    *,
    dag_id: UUID | None = None,
    task_id: UUID | None = None,
) -> int:
    """Make the tasks ready that waited for this budget; return their number."""
    rows = tx.execute(
        statement("release_budget_waiters"),
        {
            "user_id": user_id,
            "budget": budget.value,
            "dag_id": dag_id,
            "task_id": task_id,
            "sources": sources(LifecycleEvent.UNBLOCK),
            "target": target(LifecycleEvent.UNBLOCK),
        },
    )
    wake_after_commit(tx)
    return len(rows.all())


def _check_usd(usd: float | None, *, minimum: float = 0.0) -> None:
    if usd is not None and not minimum <= usd <= MAX_USD:
        raise InvalidRequest("usd", str(usd), legal=f"{minimum:g} to {MAX_USD:.0f}")


def _usd_field(usd: float | None) -> float | str:
    return "none" if usd is None else usd
