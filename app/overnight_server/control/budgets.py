"""Money a person grants or refuses: approving tasks that ask, stopping them, setting budgets."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, update

from overnight.errors import (
    AgentNotFound,
    DagNotFound,
    InvalidRequest,
    NotAwaitingApproval,
    TaskNotFound,
    UserNotFound,
)
from overnight_server.domain.budgets import Budget
from overnight_server.domain.ids import DagId, TaskId, UserId
from overnight_server.domain.lifecycle import Event, sources, target
from overnight_server.outcome.settle import follow_cancelled
from overnight_server.store import lanes
from overnight_server.store.after_commit import wake_after_commit
from overnight_server.store.db import Db
from overnight_server.store.models import User
from overnight_server.store.statements import statement
from overnight_server.telemetry import Event as Said
from overnight_server.telemetry import emit

# More than a night should cost.
MOST_USD = 999_999.0


@dataclass(frozen=True)
class Approved:
    """What an approval came to: which budget was raised, and how many tasks go on."""

    budget: Budget
    resumed: int


def approve(
    db: Db, task_id: TaskId, usd: float, *, actor: str, user_id: UserId | None = None
) -> Approved:
    """Allow a task that asks so much more, and let it go on.

    It is the budget that was used up which is raised: the task's ceiling, its graph's, or the
    user's for this night. Others that wait for the same budget go on with it. With a `user_id`,
    another user's task looks exactly like none.
    """
    _check_usd(usd, least=0.01)

    def work(tx: Connection) -> Approved:
        row = _asking(tx, task_id, actor, user_id)
        budget = Budget(row.awaits_budget)
        if budget is Budget.DAG:
            tx.execute(statement("raise_dag_budget"), {"dag_id": row.dag_id, "usd": usd})
            resumed = _let_go_on(tx, row.user_id, budget, dag_id=row.dag_id)
        elif budget is Budget.NIGHT:
            tx.execute(statement("raise_night_budget"), {"user_id": row.user_id, "usd": usd})
            resumed = _let_go_on(tx, row.user_id, budget)
        else:
            tx.execute(statement("raise_task_budget"), {"task_id": task_id, "usd": usd})
            resumed = _let_go_on(tx, row.user_id, budget, task_id=task_id)
        return Approved(budget, resumed)

    approved = db.atomically(work)
    emit(Said.BUDGET_RAISED, budget=approved.budget, usd=usd, actor=actor, task_id=task_id)
    return approved


def stop(db: Db, task_id: TaskId, *, actor: str, user_id: UserId | None = None) -> None:
    """End a task that asks for money: cancelled, with the reason `budget_exceeded`."""

    def work(tx: Connection) -> None:
        row = _asking(tx, task_id, actor, user_id)
        tx.execute(
            statement("cancel"),
            {
                "user_id": row.user_id,
                "tasks": [task_id],
                "sources": sources(Event.UNBLOCK),
                "target": target(Event.CANCEL),
                "reason": "budget_exceeded",
            },
        ).one()
        follow_cancelled(tx, [task_id])

    db.atomically(work)


def set_night_budget(db: Db, user_id: UserId, usd: float | None, *, actor: str) -> None:
    """Set what a user's tasks may cost in a night, None for no limit; those who wait go on."""
    _check_usd(usd)

    def work(tx: Connection) -> None:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        changed = tx.execute(
            update(User).where(User.id == user_id).values(night_budget_usd=usd).returning(User.id)
        )
        if changed.one_or_none() is None:
            raise UserNotFound
        _let_go_on(tx, user_id, Budget.NIGHT)

    db.atomically(work)
    emit(Said.BUDGET_SET, budget=Budget.NIGHT, usd=_said(usd), actor=actor, user_id=user_id)


def set_dag_budget(db: Db, dag_id: DagId, usd: float | None, *, actor: str) -> None:
    """Set what a graph's tasks together may cost, None for no limit; those who wait go on."""
    _check_usd(usd)

    def work(tx: Connection) -> None:
        owner = tx.execute(statement("owner_of_dag"), {"dag_id": dag_id}).scalar_one_or_none()
        if owner is None:
            raise DagNotFound
        lanes.lock(tx, [owner])
        tx.execute(statement("set_actor"), {"actor": actor})
        tx.execute(statement("set_dag_budget"), {"dag_id": dag_id, "usd": usd})
        lanes.unskip_lane(tx, owner)
        _let_go_on(tx, owner, Budget.DAG, dag_id=dag_id)

    db.atomically(work)
    emit(Said.BUDGET_SET, budget=Budget.DAG, usd=_said(usd), actor=actor, dag_id=dag_id)


def set_agent_budget(db: Db, agent_id: str, usd: float | None, *, actor: str) -> None:
    """Set what an agent's runs may cost from now on, None for no limit."""
    _check_usd(usd)

    def work(tx: Connection) -> str:
        tx.execute(statement("set_actor"), {"actor": actor})
        asked = {"agent_id": agent_id, "usd": usd}
        pool: str | None = tx.execute(statement("set_agent_budget"), asked).scalar_one_or_none()
        if pool is None:
            raise AgentNotFound
        return pool

    # What was too dear for it may have parked lanes.
    lanes.unskip_lanes(db, db.atomically(work))
    db.wake()
    emit(Said.BUDGET_SET, budget=Budget.AGENT, usd=_said(usd), actor=actor, worker=agent_id)


def _asking(tx: Connection, task_id: TaskId, actor: str, user_id: UserId | None) -> Row[Any]:
    """Hold the lane of a task that asks for money, and return what it asks for."""
    named = {"task_id": task_id}
    seen = tx.execute(statement("budget_awaited_by_task"), named).one_or_none()
    if seen is None or user_id not in (None, seen.user_id):
        raise TaskNotFound
    lanes.lock(tx, [seen.user_id])
    tx.execute(statement("set_actor"), {"actor": actor})
    row = tx.execute(statement("budget_awaited_by_task"), named).one()
    if row.awaits_budget is None:
        raise NotAwaitingApproval(row.state)
    return row


def _let_go_on(
    tx: Connection,
    user_id: UUID,
    budget: Budget,
    *,
    dag_id: UUID | None = None,
    task_id: UUID | None = None,
) -> int:
    rows = tx.execute(
        statement("release_budget_waiters"),
        {
            "user_id": user_id,
            "budget": budget.value,
            "dag_id": dag_id,
            "task_id": task_id,
            "sources": sources(Event.UNBLOCK),
            "target": target(Event.UNBLOCK),
        },
    )
    wake_after_commit(tx)
    return len(rows.all())


def _check_usd(usd: float | None, *, least: float = 0.0) -> None:
    if usd is not None and not least <= usd <= MOST_USD:
        raise InvalidRequest("usd", str(usd), legal=f"{least:g} to {MOST_USD:.0f}")


def _said(usd: float | None) -> float | str:
    return "none" if usd is None else usd
