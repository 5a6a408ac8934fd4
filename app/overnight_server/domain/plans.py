"""The plans on offer: how many at once, how long each, how many hours a month."""

from dataclasses import dataclass
from enum import StrEnum


class PlanTier(StrEnum):
    """The plan a user is on."""

    FREE = "free"
    PRO = "pro"
    TEAM = "team"
    ENTERPRISE = "enterprise"


class OnExhausted(StrEnum):
    """What becomes of a task submitted when the month's hours are used up."""

    REJECT = "reject"
    HOLD = "hold"


@dataclass(frozen=True)
class PlanLimits:
    """What a plan allows; `monthly_agent_hours` None means without limit."""

    max_concurrent_agents: int
    max_task_duration_minutes: int
    monthly_agent_hours: int | None


# Who goes first when nothing else tells two users apart; as much as the larger plan is owed.
PLAN_WEIGHT: dict[PlanTier, int] = {tier: place for place, tier in enumerate(PlanTier, start=1)}

# A template: copied to the user's columns at sign-up and plan change, which rule from then on.
PLAN_LIMITS: dict[PlanTier, PlanLimits] = {
    PlanTier.FREE: PlanLimits(1, 30, 10),
    PlanTier.PRO: PlanLimits(3, 120, 100),
    PlanTier.TEAM: PlanLimits(10, 240, None),
    PlanTier.ENTERPRISE: PlanLimits(50, 480, None),
}
