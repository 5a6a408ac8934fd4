"""Making users, and changing what they may do; only operators and admins come here."""

from sqlalchemy import Connection, insert, update

from app.domain.errors import UserNotFound
from app.domain.ids import UserId
from app.domain.plans import PLAN_LIMITS, PlanLimits, PlanTier
from app.store import lanes
from app.store.db import Db
from app.store.models import User


def create_user(db: Db, *, name: str, plan: PlanTier, is_admin: bool = False) -> UserId:
    """Make a user with a copy of the plan's limits; a lane opens beside it by itself."""
    values = {"name": name, "is_admin": is_admin, **_columns(plan, PLAN_LIMITS[plan])}
    return UserId(
        db.atomically(
            lambda tx: tx.execute(insert(User).values(values).returning(User.id)).scalar_one()
        )
    )


def change_plan(
    db: Db, user_id: UserId, plan: PlanTier, *, limits: PlanLimits | None = None
) -> None:
    """Put a user on another plan, with the plan's limits or with an exception to them.

    It holds from the next claim on. Going below what is used or running stops nothing that runs.
    """

    def work(tx: Connection) -> None:
        # The lane first, like everyone: a claim under way is judged by the old limits.
        lanes.lock(tx, [user_id])
        columns = _columns(plan, limits or PLAN_LIMITS[plan])
        changed = tx.execute(
            update(User).where(User.id == user_id).values(columns).returning(User.id)
        )
        if changed.one_or_none() is None:
            raise UserNotFound

    db.atomically(work)


def _columns(plan: PlanTier, limits: PlanLimits) -> dict[str, object]:
    return {
        "plan_tier": plan.value,
        "max_concurrent_agents": limits.max_concurrent_agents,
        "max_task_duration_minutes": limits.max_task_duration_minutes,
        "monthly_agent_hours_limit": limits.monthly_agent_hours,
    }
