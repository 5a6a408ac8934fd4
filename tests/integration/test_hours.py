"""Monthly hours: notices before they are used up, refusal or waiting afterwards, no overrun."""

import random
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overnight.errors import MonthlyLimitReached
from overnight.models.enums import PlanTier
from overnight_server.control.adjust_hours import adjust_hours
from overnight_server.control.users import Overrides, change_plan, override_limits
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import UserId
from overnight_server.domain.plans import OnExhausted
from overnight_server.domain.results import Interrupted, Raised, Returned
from overnight_server.insight.notices import list_notices
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import reap
from overnight_server.maintenance.reset import reset_cycles
from overnight_server.outcome.settle import settle
from tests.support.deployment import AGENT, LEASE, Deployment
from tests.support.invariants import describe_violations, record_plan_history, violations
from tests.support.profiles import examples
from tests.support.rivals import Connect, Rival, meet_at_lane

HOUR = timedelta(hours=1)
MONTH = timedelta(days=31)
# The steps for a user with one hour a month: runs with every result, and time passing.
STEPS = (
    *("work", "work", "work", "submit", "claim", "complete", "fail", "hand back", "crash"),
    *("wait", "month", "replan"),
)


def marks(deployment: Deployment, user: UserId) -> list[str]:
    return [notice.kind for notice in reversed(list_notices(deployment.app, user))]


def test_notices_for_50_80_and_100_percent_of_the_hours_are_written_once(
    deployment: Deployment,
) -> None:
    user = deployment.user(PlanTier.FREE)

    for hours in (4.9, 0.1, 0.1, 2.9, 1.9, 0.1, 0.1):
        adjust_hours(deployment.app, user, hours, note="test")

    assert marks(deployment, user) == ["usage.50", "usage.80", "usage.100"]
    [half, *_] = reversed(list_notices(deployment.app, user))
    assert half.detail["percent"] == 50
    assert half.detail["used_seconds"] == 18_000


def test_one_charge_over_several_marks_writes_all_their_notices(deployment: Deployment) -> None:
    user = deployment.user(PlanTier.FREE)

    adjust_hours(deployment.app, user, 11, note="test")

    assert marks(deployment, user) == ["usage.50", "usage.80", "usage.100"]


def test_a_new_month_writes_notices_again_and_a_refund_removes_none(deployment: Deployment) -> None:
    user = deployment.user(PlanTier.FREE)
    adjust_hours(deployment.app, user, 6, note="test")
    adjust_hours(deployment.app, user, -6, note="test")
    adjust_hours(deployment.app, user, 6, note="test")
    assert marks(deployment, user) == ["usage.50"]

    deployment.move_clock(MONTH)
    adjust_hours(deployment.app, user, 6, note="test")

    assert marks(deployment, user) == ["usage.50", "usage.50"]


def test_without_a_limit_no_notice_is_written(deployment: Deployment) -> None:
    user = deployment.user(PlanTier.TEAM)

    adjust_hours(deployment.app, user, 9999, note="test")

    assert marks(deployment, user) == []


def test_concurrent_settles_write_a_notice_once(deployment: Deployment, connect: Connect) -> None:
    user = deployment.user(PlanTier.PRO, monthly_agent_hours_limit=2)
    deployment.agent()
    runs = [deployment.running(user, timeout_seconds=2000) for _ in range(3)]
    deployment.move_clock(timedelta(seconds=1900))
    rivals = [
        Rival(connect, f"worker-{n}", settle, run, Returned(), agent=AGENT)
        for n, run in enumerate(runs)
    ]

    meet_at_lane(connect, user, *rivals)

    assert marks(deployment, user) == ["usage.50"]  # 5,700 of 7,200 seconds
    assert deployment.lane(user)["used_seconds"] >= 5_700


def test_used_up_hours_refuse_by_default_or_make_tasks_wait(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(PlanTier.FREE)
    adjust_hours(deployment.app, user, 10, note="test")
    with pytest.raises(MonthlyLimitReached):
        deployment.task(user)

    override_limits(deployment.app, user, Overrides(on_exhausted=OnExhausted.HOLD))

    task = deployment.task(user, timeout_seconds=60)
    assert not deployment.claim().claims
    deployment.move_clock(MONTH)
    reset_cycles(deployment.dispatcher)
    assert [claimed.claim.task_id for claimed in deployment.claim().claims] == [task]


def test_ten_exhausted_users_do_not_starve_the_eleventh(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    for _ in range(10):
        user = deployment.user(PlanTier.FREE, on_exhausted="hold")
        adjust_hours(deployment.app, user, 10, note="test")
        deployment.task(user)
    deployment.move_clock(HOUR)
    task = deployment.task(deployment.user(PlanTier.FREE))

    assert [claimed.claim.task_id for claimed in deployment.claim(limit=1).claims] == [task]


def test_a_downgrade_below_the_used_hours_only_blocks_new_claims(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(PlanTier.PRO)
    run = deployment.running(user, timeout_seconds=60)
    waiting = deployment.task(user, timeout_seconds=60)
    adjust_hours(deployment.app, user, 50, note="test")

    change_plan(deployment.app, user, PlanTier.FREE)

    assert not deployment.claim().claims
    assert deployment.settle(run, Returned())
    change_plan(deployment.app, user, PlanTier.PRO)
    assert [claimed.claim.task_id for claimed in deployment.claim().claims] == [waiting]


@settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.sampled_from(STEPS), min_size=10, max_size=60), st.integers(0, 1_000))
def test_no_sequence_of_steps_pushes_the_ledger_past_the_limit(
    deployment: Deployment, steps: list[str], seed: int
) -> None:
    life = _Life(deployment, random.Random(seed))

    for step in ["submit", "submit", "claim", *steps]:
        life.take(step)

    broken = violations(deployment.owner)
    assert not broken, describe_violations(broken)
    [over] = deployment.rows(
        "SELECT count(*) AS months FROM (SELECT user_id FROM usage_ledger WHERE user_id = :user"
        " GROUP BY user_id, period_started_at HAVING sum(seconds) > :most) m",
        user=life.user,
        most=life.most_seconds,
    )
    assert over["months"] == 0


class _Life:
    """A user with few hours, to whom the steps are applied."""

    def __init__(self, deployment: Deployment, chance: random.Random) -> None:
        self.deployment = deployment
        self.chance = chance
        if not _has_plan_history(deployment):
            record_plan_history(deployment.owner)
        deployment.agent()
        self.user = deployment.user(
            PlanTier.PRO,
            monthly_agent_hours_limit=1,
            on_exhausted="hold",
            max_task_duration_minutes=20,
        )
        self.most_seconds = 3600
        self.runs: list[Run] = []

    def take(self, step: str) -> None:
        ends: dict[str, Callable[[], object]] = {
            "complete": lambda: self.settle(Returned()),
            "fail": lambda: self.settle(Raised("error", "no")),
            "hand back": lambda: self.settle(Interrupted()),
            "crash": self.crash,
            "submit": lambda: self.deployment.task(self.user, timeout_seconds=1200, max_attempts=9),
            "claim": self.claim,
            "work": self.work,
            "wait": lambda: self.deployment.move_clock(
                timedelta(seconds=self.chance.randint(1, 900))
            ),
            "month": self.month,
            "replan": self.replan,
        }
        ends[step]()

    def claim(self) -> None:
        promote(self.deployment.dispatcher)
        for claimed in self.deployment.claim(limit=2).claims:
            run = self.deployment.start(claimed)
            if run is not None:
                self.runs.append(run)

    def work(self) -> None:
        """Let runs take nearly their whole timeout."""
        for _ in range(2):
            self.take("submit")
        self.claim()
        self.deployment.move_clock(timedelta(seconds=self.chance.randint(1000, 1190)))
        while self.runs:
            self.settle(Returned())

    def settle(self, result: Returned | Raised | Interrupted) -> None:
        if self.runs:
            run = self.runs.pop(self.chance.randrange(len(self.runs)))
            self.deployment.settle(run, result)

    def crash(self) -> None:
        self.deployment.move_clock(LEASE + timedelta(seconds=31))
        reap(self.deployment.dispatcher)
        self.runs.clear()

    def month(self) -> None:
        self.deployment.move_clock(timedelta(days=self.chance.choice([10, 31, 62])))
        reset_cycles(self.deployment.dispatcher)

    def replan(self) -> None:
        hours = self.chance.choice([0, 1, 1])
        override_limits(self.deployment.app, self.user, Overrides(hours=hours))


def _has_plan_history(deployment: Deployment) -> bool:
    return bool(
        deployment.one("SELECT to_regclass('plan_history') IS NOT NULL AS watched")["watched"]
    )
