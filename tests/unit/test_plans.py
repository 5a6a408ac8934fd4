"""The plans on offer, as they are sold."""

from itertools import pairwise

import pytest

from overnight.models.enums import PlanTier
from overnight_server.domain.plans import PLAN_LIMITS, PlanLimits


@pytest.mark.parametrize(
    ("tier", "at_once", "minutes", "hours"),
    [
        ("free", 1, 30, 10),
        ("pro", 3, 120, 100),
        ("team", 10, 240, None),
        ("enterprise", 50, 480, None),
    ],
)
def test_each_plan_has_its_documented_limits(
    tier: str, at_once: int, minutes: int, hours: int | None
) -> None:
    assert PLAN_LIMITS[PlanTier(tier)] == PlanLimits(
        max_concurrent_agents=at_once,
        max_task_duration_minutes=minutes,
        monthly_agent_hours=hours,
    )


def test_every_tier_has_limits() -> None:
    assert set(PLAN_LIMITS) == set(PlanTier)


def test_a_higher_tier_never_allows_less() -> None:
    without_limit = float("inf")
    sizes = [
        (
            limits.max_concurrent_agents,
            limits.max_task_duration_minutes,
            without_limit if limits.monthly_agent_hours is None else limits.monthly_agent_hours,
        )
        for limits in (PLAN_LIMITS[tier] for tier in PlanTier)
    ]

    for lower, higher in pairwise(sizes):
        assert all(less <= more for less, more in zip(lower, higher, strict=True))


@pytest.mark.parametrize("tier", list(PlanTier))
def test_the_longest_task_fits_into_the_month(tier: PlanTier) -> None:
    limits = PLAN_LIMITS[tier]
    minutes = (limits.monthly_agent_hours or float("inf")) * 60

    assert limits.max_task_duration_minutes <= minutes
