"""The plan and queue services with the names of the user limits design."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from overnight.errors import (
    InvalidRequest,
    MonthlyLimitReached,
    StaleAttempt,
    TaskNotFound,
    TooManyPending,
    UserNotFound,
)
from overnight.models.enums import PlanTier
from overnight_server.control.adjust_hours import adjust_hours
from overnight_server.control.pauses import PauseSubject, pause
from overnight_server.control.users import (
    NoLimit,
    Overrides,
    change_plan,
    override_limits,
    restore_template,
)
from overnight_server.domain.ids import UserId, parse_task, show_task
from overnight_server.domain.plans import PLAN_LIMITS, PlanLimits
from overnight_server.services import PlanService, TaskQueueService
from overnight_server.settings import Settings, load
from tests.support.deployment import Deployment
from tests.support.invariants import violations

NOBODY = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def settings() -> Settings:
    return make_settings()


def make_settings(**values: str) -> Settings:
    return load({f"OVERNIGHT_{name.upper()}": value for name, value in values.items()})


@pytest.fixture
def plans(deployment: Deployment) -> PlanService:
    return PlanService(deployment.app)


@pytest.fixture
def queue(deployment: Deployment, settings: Settings) -> TaskQueueService:
    return TaskQueueService(deployment.dispatcher, settings, holder="orchestrator")


@pytest.fixture(autouse=True)
def no_violations_at_the_end(deployment: Deployment) -> Iterator[None]:
    yield
    assert violations(deployment.owner) == {}


# -- PlanService ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", PlanTier)
def test_limits_are_those_of_the_plan_without_an_exception(
    deployment: Deployment, plans: PlanService, tier: PlanTier
) -> None:
    user = deployment.user(tier)

    assert plans.get_limits(user) == PLAN_LIMITS[tier]
    assert plans.get_limits(str(user)) == PLAN_LIMITS[tier]


def test_an_exception_applies_until_it_is_reset(deployment: Deployment, plans: PlanService) -> None:
    user = deployment.user(PlanTier.FREE)

    override_limits(
        deployment.app, user, Overrides(concurrency=7, hours=NoLimit.NO_LIMIT, max_pending=3)
    )
    excepted = (
        plans.get_limits(user),
        deployment.one("SELECT max_pending FROM users")["max_pending"],
    )
    restore_template(deployment.app, user)

    assert excepted == (PlanLimits(7, 30, None), 3)
    assert plans.get_limits(user) == PLAN_LIMITS[PlanTier.FREE]
    assert deployment.one("SELECT max_pending FROM users")["max_pending"] is None


def test_a_change_of_plan_removes_exceptions(deployment: Deployment, plans: PlanService) -> None:
    user = deployment.user(PlanTier.FREE)
    override_limits(deployment.app, user, Overrides(concurrency=7, minutes=5, max_pending=3))

    change_plan(deployment.app, user, PlanTier.PRO)

    assert plans.get_limits(user) == PLAN_LIMITS[PlanTier.PRO]
    # plans say nothing about how much may wait
    assert deployment.one("SELECT max_pending FROM users")["max_pending"] == 3


@pytest.mark.parametrize(
    "overrides",
    [
        Overrides(),
        Overrides(concurrency=-1),
        Overrides(minutes=0),
        Overrides(hours=-1),
        Overrides(max_pending=1_000_001),
    ],
)
def test_an_impossible_exception_is_refused(deployment: Deployment, overrides: Overrides) -> None:
    with pytest.raises(InvalidRequest):
        override_limits(deployment.app, deployment.user(), overrides)


def test_limits_of_an_unknown_user_cannot_be_changed(
    deployment: Deployment, plans: PlanService
) -> None:
    nobody = UserId(parse_task("task_00000000000000000000000000"))

    for change in (
        lambda: change_plan(deployment.app, nobody, PlanTier.PRO),
        lambda: override_limits(deployment.app, nobody, Overrides(concurrency=1)),
        lambda: restore_template(deployment.app, nobody),
        lambda: adjust_hours(deployment.app, nobody, 1, note="test"),
        lambda: plans.get_limits(NOBODY),
        lambda: plans.can_claim_task(NOBODY),
    ):
        with pytest.raises(UserNotFound):
            change()


def test_hours_added_by_an_operator_are_in_the_ledger(
    deployment: Deployment, plans: PlanService
) -> None:
    user = deployment.user(PlanTier.FREE)

    plans.add_usage_hours(user, 2.5)
    plans.add_usage_hours(user, -0.5)

    assert plans.get_monthly_hours_used(user) == 2.0
    lines = deployment.rows("SELECT kind, seconds, note FROM usage_ledger ORDER BY id")
    assert [(line["kind"], line["seconds"]) for line in lines] == [
        ("adjustment", 9000),
        ("adjustment", -1800),
    ]


def test_hours_added_after_the_month_ended_count_in_the_new_month(
    deployment: Deployment, plans: PlanService
) -> None:
    user = deployment.user(PlanTier.FREE)
    plans.add_usage_hours(user, 9)
    deployment.move_clock(timedelta(days=32))

    plans.add_usage_hours(user, 1)

    assert plans.get_monthly_hours_used(user) == 1.0


def test_the_plan_service_considers_only_plan_and_hours(
    deployment: Deployment, plans: PlanService
) -> None:
    deployment.agent()
    user = deployment.user(PlanTier.FREE)
    deployment.running(user, timeout_seconds=60)

    busy = plans.can_claim_task(user)
    plans.add_usage_hours(user, 10)
    exhausted, reason = plans.can_claim_task(user)

    assert busy == (True, None)
    assert exhausted is False
    assert reason is not None
    assert reason.startswith("monthly_limit 10/10 resets ")
    assert plans.can_claim_task(deployment.user(max_concurrent_agents=0))[0] is False


# -- TaskQueueService ----------------------------------------------------------------------------


def test_a_task_goes_through_the_queue_service_from_end_to_end(
    deployment: Deployment, queue: TaskQueueService
) -> None:
    user = deployment.user(PlanTier.PRO)
    task = queue.create_task(user, "a title", "more", "site", 2)
    assert (queue.get_pending_count(user), queue.get_queue_position(task.id)) == (1, 1)

    claimed = queue.claim_next_task_for_user(user)
    assert claimed is not None
    queue.mark_running(claimed.id, "sandbox-1")
    running = queue.get_running_count(user)
    deployment.move_clock(timedelta(minutes=30))
    queue.mark_completed(claimed.id, "all done")

    row = deployment.row(parse_task(task.id))
    assert (claimed.id, claimed.status, running) == (task.id, "claimed", 1)
    assert (row["state"], row["result_summary"]) == ("completed", "all done")
    assert queue.get_queue_position(task.id) is None
    assert 1800 <= deployment.lane(user)["used_seconds"] < 1805


def test_the_least_served_user_is_claimed_first(
    deployment: Deployment, queue: TaskQueueService
) -> None:
    first, second = deployment.user(), deployment.user()
    for _ in range(2):
        queue.create_task(first, "one of many")
    queue.create_task(second, "the only one")

    claimed = [queue.claim_next_task_any_user() for _ in range(4)]

    assert claimed[3] is None
    owners = [deployment.row(parse_task(one.id))["user_id"] for one in claimed[:3] if one]
    assert set(owners[:2]) == {first, second}


def test_a_task_that_one_caller_cannot_run_is_left_to_others(
    deployment: Deployment, settings: Settings
) -> None:
    task = deployment.task(deployment.user(), required_capabilities=["gpu"])
    unable = TaskQueueService(deployment.dispatcher, settings, holder="one")
    able = TaskQueueService(deployment.dispatcher, settings, holder="two", capabilities=["gpu"])

    assert unable.claim_next_task_any_user() is None
    claimed = able.claim_next_task_any_user()

    assert claimed is not None
    assert claimed.id == show_task(task)


def test_many_users_without_a_matching_task_do_not_hide_one_with_it(
    deployment: Deployment, queue: TaskQueueService
) -> None:
    for _ in range(30):
        deployment.task(deployment.user(), required_capabilities=["gpu"])
    last = deployment.user()
    task = deployment.task(last)
    deployment.run("UPDATE lanes SET last_served_at = clock() WHERE user_id = :id", id=last)

    claimed = queue.claim_next_task_any_user()

    assert claimed is not None
    assert claimed.id == show_task(task)


def test_repeated_claims_without_a_task_skip_the_lane_once(
    deployment: Deployment, queue: TaskQueueService
) -> None:
    user = deployment.user()
    deployment.task(user, required_capabilities=["gpu"])

    for _ in range(3):
        assert queue.claim_next_task_for_user(user) is None

    assert len(deployment.lane(user)["skipped_by_pools"]) == 1


def test_the_queue_service_reports_why_nothing_can_start(
    deployment: Deployment, settings: Settings, queue: TaskQueueService
) -> None:
    at_cap = deployment.user(PlanTier.FREE)
    queue.create_task(at_cap, "one", timeout_seconds=60)
    free = queue.can_claim_task(at_cap)
    queue.claim_next_task(at_cap)
    locked = deployment.user(PlanTier.TEAM)
    serial = TaskQueueService(
        deployment.dispatcher, make_settings(per_user_serialization_scope="user"), holder="o"
    )
    held = serial.create_task(locked, "one")
    serial.claim_next_task(locked)
    exhausted = deployment.user(PlanTier.FREE)
    PlanService(deployment.app).add_usage_hours(exhausted, 10)

    assert free == (True, None)
    assert queue.can_claim_task(at_cap) == (False, "plan_concurrency 1/1")
    allowed, reason = queue.can_claim_task(locked)
    assert (allowed, str(reason).split(" since ")[0]) == (False, f"user_lock held by {held.id}")
    assert queue.can_claim_task(exhausted)[0] is False
    assert queue._check_monthly_limit(exhausted) is False
    assert queue._check_monthly_limit(at_cap) is True
    assert settings.slots_max is None


def test_a_pause_is_reported_as_the_reason(deployment: Deployment, queue: TaskQueueService) -> None:
    user = deployment.user()
    pause(deployment.dispatcher, PauseSubject(user_id=user), actor="human:test", note="unpaid")

    allowed, reason = queue.can_claim_task(user)

    assert (allowed, queue.claim_next_task_for_user(user)) == (False, None)
    assert reason is not None
    assert reason.startswith("held: your tasks are paused since")


def test_a_run_past_its_timeout_is_failed(deployment: Deployment, queue: TaskQueueService) -> None:
    user = deployment.user(PlanTier.FREE)
    task = queue.create_task(user, "too long")
    queue.claim_next_task(user)
    queue.mark_running(task.id, "sandbox-1")
    before = queue.get_timed_out_tasks()
    deployment.move_clock(timedelta(minutes=30, seconds=5))

    overdue = queue.get_timed_out_tasks()
    queue.mark_failed(task.id, "Timeout")

    assert (before, overdue) == ([], [task.id])
    row = deployment.row(parse_task(task.id))
    assert (row["state"], row["failure_reason"]) == ("dead_lettered", "plan_timeout")
    assert deployment.lane(user)["used_seconds"] == 1800


def test_a_failed_run_is_retried(deployment: Deployment, queue: TaskQueueService) -> None:
    task = queue.create_task(deployment.user(), "fails")
    queue.claim_next_task()
    queue.mark_running(task.id, "sandbox-1")

    queue.mark_failed(task.id, "no luck")

    assert deployment.state(parse_task(task.id)) == "retrying"


def test_a_result_for_a_lost_claim_is_stale(
    deployment: Deployment, queue: TaskQueueService
) -> None:
    task = queue.create_task(deployment.user(), "one")
    queue.claim_next_task()

    with pytest.raises(StaleAttempt):
        queue.mark_completed(task.id)
    deployment.move_clock(timedelta(minutes=2))
    with pytest.raises(StaleAttempt):
        queue.mark_running(task.id, "sandbox-1")
    with pytest.raises(TaskNotFound):
        queue.get_queue_position(show_task(parse_task("task_00000000000000000000000000")))


def test_the_caps_apply_to_the_queue_service(
    deployment: Deployment, queue: TaskQueueService
) -> None:
    crowded = deployment.user(max_pending=1)
    queue.create_task(crowded, "one")
    exhausted = deployment.user(PlanTier.FREE)
    PlanService(deployment.app).add_usage_hours(exhausted, 10)

    with pytest.raises(TooManyPending):
        queue.create_task(crowded, "two")
    with pytest.raises(MonthlyLimitReached):
        queue.create_task(exhausted, "one")


def test_a_direct_claim_respects_the_cap_on_all_slots(deployment: Deployment) -> None:
    capped = TaskQueueService(deployment.dispatcher, make_settings(slots_max="1"), holder="o")
    for _ in range(2):
        capped.create_task(deployment.user(), "one")

    assert capped.claim_next_task() is not None
    assert capped.claim_next_task() is None
