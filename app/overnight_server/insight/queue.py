"""A user's queue and limits at a glance, read from the lane and never by counting tasks."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from overnight.errors import UserNotFound
from overnight_server.domain.budgets import Budget
from overnight_server.domain.ids import UserId
from overnight_server.domain.pauses import Scope
from overnight_server.domain.reasons import Code, Reason
from overnight_server.explain.explain import explain_next
from overnight_server.gate.claim import Terms
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.pauses import PauseView, pauses_in_force
from overnight_server.store.statements import statement
from overnight_server.store.windows import window_of

SECONDS_PER_HOUR = 3600
NO_SLOTS = Terms(claim_ttl=timedelta(0), liveness=timedelta(0))


@dataclass(frozen=True)
class HoldView:
    """One thing that keeps all of a user's tasks waiting: a word for programs, and a sentence."""

    code: str
    message: str


@dataclass(frozen=True)
class QueueStatusView:
    """How full a user's queue is; a limit of None means without limit.

    `held_by` is what keeps new tasks from starting.
    """

    running: int
    pending: int
    max_concurrent: int
    can_start_more: bool
    monthly_hours_used: float
    monthly_hours_limit: int | None
    held_by: list[HoldView] = field(default_factory=list)


@dataclass(frozen=True)
class UserLimitsView:
    """What a user's plan allows and what is used of it; a cap that is None is the deployment's.

    `pending_limit` is the cap in force, if the default is known. `night_left_usd` is what tonight
    can still promise, None without a budget; hours and money are promised to runs while they run.
    """

    plan: str
    max_concurrent_agents: int
    max_task_duration_minutes: int
    monthly_agent_hours_limit: int | None
    monthly_agent_hours_used: float
    billing_cycle_resets_at: datetime
    max_pending: int | None
    max_tasks_per_dag: int | None
    on_exhausted: str
    night_budget_usd: float | None
    pending: int
    pending_limit: int | None
    monthly_agent_hours_promised: float
    night_spent_usd: float
    night_left_usd: float | None
    next_night_at: datetime | None
    window: str | None


def queue_status(db: Db, user_id: UserId, terms: Terms | None = None) -> QueueStatusView:
    """Return how full the user's queue is, and what keeps the next task from starting.

    Without terms only the user is judged, for callers that bring a slot of their own.
    """
    # Looking brings the lane to the present; what is judged then depends on everybody's work.
    row, pauses = db.atomically(lambda tx: (_limits(tx, user_id), pauses_in_force(tx, user_id)))
    reasons = db.atomically(lambda tx: explain_next(tx, user_id, terms or NO_SLOTS), all_users=True)
    if terms is None:
        reasons = [reason for reason in reasons if not _is_for_a_slot(reason)]
    return QueueStatusView(
        running=row["active"],
        pending=row["waiting"],
        max_concurrent=row["max_concurrent_agents"],
        can_start_more=not reasons,
        monthly_hours_used=_hours(row),
        monthly_hours_limit=row["monthly_agent_hours_limit"],
        held_by=[
            *_holds(row, pauses),
            *(
                HoldView(one.code.value, one.message)
                for one in reasons
                if one.code not in {Code.PAUSED, Code.WINDOW}
            ),
        ],
    )


def user_limits(
    db: Db, user_id: UserId, *, default_max_pending: int | None = None
) -> UserLimitsView:
    """Return the user's plan, this month's usage and tonight's money."""
    row = db.atomically(lambda tx: _limits(tx, user_id))
    window = window_of(row)
    night, spent = row["night_limit_usd"], row["night_spent_usd"]
    return UserLimitsView(
        plan=row["plan"],
        max_concurrent_agents=row["max_concurrent_agents"],
        max_task_duration_minutes=row["max_task_duration_minutes"],
        monthly_agent_hours_limit=row["monthly_agent_hours_limit"],
        monthly_agent_hours_used=_hours(row),
        billing_cycle_resets_at=row["billing_cycle_resets_at"],
        max_pending=row["max_pending"],
        max_tasks_per_dag=row["max_tasks_per_dag"],
        on_exhausted=row["on_exhausted"],
        night_budget_usd=(
            None if row["night_budget_usd"] is None else float(row["night_budget_usd"])
        ),
        pending=row["waiting"],
        pending_limit=default_max_pending if row["max_pending"] is None else row["max_pending"],
        monthly_agent_hours_promised=round(row["reserved_seconds"] / SECONDS_PER_HOUR, 2),
        night_spent_usd=float(spent),
        night_left_usd=(
            None if night is None else max(0.0, float(night - spent - row["night_reserved_usd"]))
        ),
        next_night_at=row["next_night_at"],
        window=None if window is None else f"{window} ({window.at_closing.value})",
    )


def has_hours_left(db: Db, user_id: UserId) -> bool:
    """Whether any of the user's hours are neither used nor promised to what runs."""
    lane = db.atomically(lambda tx: lanes.read(tx, user_id))
    if lane is None:
        raise UserNotFound
    limit = lane.limit_seconds
    return limit is None or lane.used_seconds + lane.reserved_seconds < limit


def _is_for_a_slot(reason: Reason) -> bool:
    return (
        reason.code in {Code.NO_WORKER, Code.SLOTS, Code.SLOTS_MAX}
        or reason.details.get("scope") == Scope.POOL
        or reason.details.get("budget") == Budget.AGENT
    )


def _holds(row: dict[str, Any], pauses: list[PauseView]) -> list[HoldView]:
    holds = [HoldView("paused", one.message) for one in pauses]
    if row["window_closed"] or row["carried_until"] is not None:
        opens = f"the night window opens at {row['window_turns_at']:%Y-%m-%d %H:%MZ}"
        carries = "; until then only what was waiting when it closed may start"
        holds.append(HoldView("window", opens + (carries if row["carried_until"] else "")))
    return holds


def _limits(tx: Connection, user_id: UserId) -> dict[str, Any]:
    # Reading the lane first begins a month that is due, so the figures are this month's.
    if lanes.read(tx, user_id) is None:
        raise UserNotFound
    return dict(tx.execute(statement("view_limits"), {"user_id": user_id}).mappings().one())


def _hours(row: dict[str, Any]) -> float:
    return round(float(row["used_seconds"]) / SECONDS_PER_HOUR, 2)
