"""`PlanService`: a user's plan limits and hours (interface of the user limits document)."""

from uuid import UUID

from overnight.models.admin import UserLimitsDetail
from overnight_server.control.adjust_hours import adjust_hours
from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import PlanLimits
from overnight_server.insight.limits import has_hours_left, user_limits
from overnight_server.store.db import Db


class PlanService:
    """Reads a user's limits and used hours, and adds hours by hand."""

    def __init__(self, db: Db) -> None:
        self._db = db

    def get_limits(self, user_id: UUID | str) -> PlanLimits:
        """Return the limits that apply to the user now, including exceptions to the plan."""
        view = self._view(user_id)
        hours = view.monthly_agent_hours_limit
        return PlanLimits(
            max_concurrent_agents=view.max_concurrent_agents,
            max_task_duration_minutes=view.max_task_duration_minutes,
            monthly_agent_hours=None if hours is None else int(hours),
        )

    def get_monthly_hours_used(self, user_id: UUID | str) -> float:
        """Return the hours used in the current billing month."""
        return self._view(user_id).monthly_agent_hours_used

    def add_usage_hours(self, user_id: UUID | str, hours: float) -> None:
        """Charge hours by hand. The hours of a run are charged by settle, not by this method."""
        adjust_hours(self._db, as_user_id(user_id), hours, note="add_usage_hours")

    def can_claim_task(self, user_id: UUID | str) -> tuple[bool, str | None]:
        """Return whether plan and hours allow another task to start, and the reason if not."""
        view = self._view(user_id)
        if view.max_concurrent_agents == 0:
            return False, "plan_concurrency 0/0"
        if not has_hours_left(self._db, as_user_id(user_id)):
            used, limit = view.monthly_agent_hours_used, view.monthly_agent_hours_limit
            resets_at = view.billing_cycle_resets_at
            resets = "never" if resets_at is None else resets_at.isoformat()
            return False, f"monthly_limit {used:g}/{limit:g} resets {resets}"
        return True, None

    def _view(self, user_id: UUID | str) -> UserLimitsDetail:
        return user_limits(self._db, as_user_id(user_id))


def as_user_id(user_id: UUID | str) -> UserId:
    """Return a user id that may be given as text."""
    return UserId(user_id if isinstance(user_id, UUID) else UUID(user_id))
