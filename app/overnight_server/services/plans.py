"""`PlanService`: a user's plan and hours, under the names of the user limits' design."""

from uuid import UUID

from overnight_server.control.usage import adjust_hours
from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import PlanLimits
from overnight_server.insight.queue import UserLimitsView, has_hours_left, user_limits
from overnight_server.store.db import Db


class PlanService:
    """What a user's columns allow, and what the ledger says is used of it."""

    def __init__(self, db: Db) -> None:
        self._db = db

    def get_limits(self, user_id: UUID | str) -> PlanLimits:
        """Return the limits in force, exceptions included."""
        view = self._view(user_id)
        return PlanLimits(
            max_concurrent_agents=view.max_concurrent_agents,
            max_task_duration_minutes=view.max_task_duration_minutes,
            monthly_agent_hours=view.monthly_agent_hours_limit,
        )

    def get_monthly_hours_used(self, user_id: UUID | str) -> float:
        """Return the hours used in the current billing month."""
        return self._view(user_id).monthly_agent_hours_used

    def add_usage_hours(self, user_id: UUID | str, hours: float) -> None:
        """Charge hours by hand; runs are charged when they end, without anyone's help."""
        adjust_hours(self._db, user(user_id), hours, note="add_usage_hours")

    def can_claim_task(self, user_id: UUID | str) -> tuple[bool, str | None]:
        """Say whether plan and hours let another task start, and if not, why not."""
        view = self._view(user_id)
        if view.max_concurrent_agents == 0:
            return False, "plan_concurrency 0/0"
        if not has_hours_left(self._db, user(user_id)):
            used, limit = view.monthly_agent_hours_used, view.monthly_agent_hours_limit
            resets_at = view.billing_cycle_resets_at.isoformat()
            return False, f"monthly_limit {used:g}/{limit} resets {resets_at}"
        return True, None

    def _view(self, user_id: UUID | str) -> UserLimitsView:
        return user_limits(self._db, user(user_id))


def user(user_id: UUID | str) -> UserId:
    """Read a user's id, which the documents write as text."""
    return UserId(user_id if isinstance(user_id, UUID) else UUID(user_id))
