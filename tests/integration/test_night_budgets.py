"""Night budgets: the start and end of a night, and the tasks it pays for."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from overnight_server.control.budgets import (
    approve,
    set_night_budget,
)
from overnight_server.domain.results import Returned, StoppedByBudget
from overnight_server.gate.claim import LANES_PER_REFRESH, claim
from overnight_server.maintenance.reset import reset_cycles
from overnight_server.outcome.heartbeat import CostSoFar, HeartbeatAnswer, heartbeat
from tests.support.costs import ACTOR, beat, start_all
from tests.support.deployment import CLAIM_SETTINGS, LEASE, Deployment
from tests.support.invariants import describe_violations, violations
from tests.support.rivals import Connect, Rival, held_pool, meet_at_lane, queue_up

DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def _no_violations_at_the_end(deployment: Deployment) -> object:
    yield
    broken = violations(deployment.owner)
    assert not broken, describe_violations(broken)


def test_a_used_up_night_budget_starts_nothing_until_the_next_night(deployment: Deployment) -> None:
    user = deployment.user(night_budget_usd=2)
    deployment.agent()
    run = deployment.running(user)
    deployment.settle(run, Returned(cost_usd=2.0))
    task = deployment.task(user)

    assert not deployment.claim().claims
    assert not deployment.lane(user)["eligible"]
    deployment.move_clock(DAY)

    assert [claimed.claim.task_id for claimed in deployment.claim().claims] == [task]


def test_tasks_that_used_up_the_night_budget_continue_the_next_night(
    deployment: Deployment,
) -> None:
    user = deployment.user(night_budget_usd=1)
    deployment.agent()
    run = deployment.running(user)
    beat(deployment, run, 1.5)
    deployment.settle(run, StoppedByBudget(cost_usd=1.5))
    assert deployment.row(run.claim.task_id)["awaits_budget"] == "night"

    deployment.move_clock(DAY)
    reset_cycles(deployment.dispatcher)

    assert deployment.state(run.claim.task_id) == "ready"
    lane = deployment.lane(user)
    assert (lane["night_started_at"], lane["night_spent_usd"]) == (None, 0)


def test_the_first_cost_of_a_night_starts_it_without_a_sweep(deployment: Deployment) -> None:
    user = deployment.user(night_budget_usd=1)
    deployment.agent()
    asking = deployment.running(user)
    other = deployment.running(user)
    deployment.settle(asking, StoppedByBudget(cost_usd=1.5))
    deployment.move_clock(DAY)
    heartbeat(deployment.dispatcher, other.claim, lease=LEASE * 9999)

    assert beat(deployment, other, 0.25) is HeartbeatAnswer.CONTINUE

    assert deployment.state(asking.claim.task_id) == "ready"
    assert float(deployment.lane(user)["night_spent_usd"]) == 0.25


def test_an_approval_for_a_night_lasts_for_that_night(deployment: Deployment) -> None:
    user = deployment.user(night_budget_usd=1)
    deployment.agent()
    run = deployment.running(user)
    deployment.settle(run, StoppedByBudget(cost_usd=1.5))

    approve(deployment.app, run.claim.task_id, 2.0, actor=ACTOR)

    assert float(deployment.lane(user)["night_limit_usd"]) == 3.5
    [again] = start_all(deployment)
    deployment.settle(again, Returned(cost_usd=0.5))
    deployment.move_clock(DAY)
    reset_cycles(deployment.dispatcher)
    assert deployment.lane(user)["night_limit_usd"] == 1


def test_an_approval_does_not_apply_to_an_unstarted_night(
    deployment: Deployment,
) -> None:
    user = deployment.user(night_budget_usd=1)
    deployment.agent()
    run = deployment.running(user, max_cost_usd=20, estimated_cost_usd=1)
    deployment.settle(run, StoppedByBudget(cost_usd=1))
    approve(deployment.app, run.claim.task_id, 10.0, actor=ACTOR)
    deployment.task(user, max_cost_usd=9)
    for _ in range(LANES_PER_REFRESH):
        deployment.user()
    deployment.run(
        "UPDATE lanes SET resets_at = clock() - interval '1 day' WHERE user_id <> :user", user=user
    )
    deployment.set_clock(deployment.lane(user)["night_ends_at"])

    # More lanes are due than one pass refreshes, and this lane is last.
    taken = [*deployment.claim().claims, *deployment.claim().claims]

    assert [claimed.claim.task_id for claimed in taken] == [run.claim.task_id]


def test_a_raised_night_budget_lets_waiting_tasks_continue(deployment: Deployment) -> None:
    user = deployment.user(night_budget_usd=1)
    deployment.agent()
    run = deployment.running(user)
    deployment.settle(run, StoppedByBudget(cost_usd=1.0))

    set_night_budget(deployment.app, user, None, actor=ACTOR)

    assert [run.claim.task_id for run in start_all(deployment)] == [run.claim.task_id]


def test_a_night_starts_only_affordable_tasks(deployment: Deployment) -> None:
    user = deployment.user(night_budget_usd=3)
    deployment.agent()
    deployment.task(user, max_cost_usd=5)
    small = [deployment.task(user, max_cost_usd=1) for _ in range(4)]

    taken = [claimed.claim.task_id for claimed in deployment.claim().claims]

    assert taken == small[:3]
    assert deployment.lane(user)["night_reserved_usd"] == 3


def test_a_night_is_the_users_window_if_there_is_one(deployment: Deployment) -> None:
    user = deployment.user(window_zone="America/New_York", window_from="21:30", window_to="21:00")
    deployment.set_clock(datetime(2026, 11, 16, 18, tzinfo=UTC))  # 13:00 there: the window is open
    deployment.agent()
    run = deployment.running(user)

    deployment.settle(run, Returned(cost_usd=0.5))

    [night] = deployment.rows(
        "SELECT (night_started_at AT TIME ZONE 'America/New_York')::time AS began,"
        " night_started_at <= clock() AND clock() < night_ends_at AS is_now,"
        " night_ends_at - night_started_at AS lasts FROM lanes WHERE user_id = :user",
        user=user,
    )
    assert str(night["began"]) == "21:30:00"
    assert night["is_now"]
    assert timedelta(hours=23) <= night["lasts"] <= timedelta(hours=25)


def test_an_unknown_time_zone_does_not_block_a_settle(
    deployment: Deployment,
) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user)
    deployment.run(
        "UPDATE users SET window_zone = 'Mars/Olympus', window_from = '20:00', window_to = '06:00'"
        " WHERE id = :user",
        user=user,
    )

    assert deployment.settle(run, Returned(cost_usd=0.5))

    assert deployment.lane(user)["night_started_at"].hour == 0


def test_two_reports_of_one_user_never_lose_money(deployment: Deployment, connect: Connect) -> None:
    user = deployment.user(night_budget_usd=1)
    deployment.agent()
    runs = [deployment.running(user), deployment.running(user)]
    rivals = [
        Rival(connect, f"worker-{n}", heartbeat, run.claim, lease=LEASE, cost=CostSoFar(user, 0.5))
        for n, run in enumerate(runs)
    ]

    answers = meet_at_lane(connect, user, *rivals)

    assert answers == [HeartbeatAnswer.CONTINUE, HeartbeatAnswer.BUDGET]
    assert deployment.lane(user)["night_spent_usd"] == 1


def test_the_example_of_the_budgets_page_is_correct(deployment: Deployment) -> None:
    steps: list[tuple[float, float, float]] = []
    user = deployment.user(night_budget_usd=4)
    deployment.agent()

    def note() -> None:
        lane = deployment.lane(user)
        spent, promised = float(lane["night_spent_usd"]), float(lane["night_reserved_usd"])
        steps.append((spent, promised, 4 - spent - promised))

    tasks = [deployment.task(user, max_cost_usd=2) for _ in range(3)]
    first, second = start_all(deployment)
    note()
    beat(deployment, first, 0.5)
    note()
    deployment.settle(first, Returned(cost_usd=0.5))
    note()
    assert beat(deployment, second, 2.0) is HeartbeatAnswer.BUDGET
    deployment.settle(second, StoppedByBudget(cost_usd=2.0))
    note()
    approve(deployment.app, tasks[1], 1.0, actor=ACTOR)
    [again] = start_all(deployment)
    note()
    deployment.settle(again, Returned(cost_usd=0.25))
    assert not deployment.claim().claims
    note()
    deployment.move_clock(DAY)
    [third] = start_all(deployment)
    note()

    assert third.claim.task_id == tasks[2]
    page = (Path(__file__).parents[2] / "docs" / "guides" / "budgets.md").read_text()
    rows = re.findall(r"\| \$(\d\.\d\d) \| \$(\d\.\d\d) \| \$(\d\.\d\d) \|$", page, re.MULTILINE)
    assert [tuple(float(figure) for figure in row) for row in rows] == steps


def test_a_budget_raised_before_the_run_ended_sends_it_back_to_the_queue(
    deployment: Deployment,
) -> None:
    user = deployment.user(night_budget_usd=1)
    deployment.agent()
    run = deployment.running(user)
    assert beat(deployment, run, 1.0) is HeartbeatAnswer.BUDGET
    set_night_budget(deployment.app, user, 10, actor=ACTOR)

    deployment.settle(run, StoppedByBudget(cost_usd=1.0))

    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["failure_reason"], row["error"]) == ("ready", None, None)


def test_concurrent_claims_reserve_no_more_than_the_night_budget(
    deployment: Deployment, connect: Connect
) -> None:
    user = deployment.user(night_budget_usd=2)
    for _ in range(6):
        deployment.task(user, max_cost_usd=1)
    pools = ["left", "right"]
    for pool in pools:
        deployment.agent(agent_id=pool, pool=pool)
    rivals = [
        Rival(connect, f"claims-{pool}", claim, pool, holder=pool, claim_settings=CLAIM_SETTINGS)
        for pool in pools
    ]

    with held_pool(connect, "left"), held_pool(connect, "right"):
        queue_up(connect, rivals)
    taken = [len(rival.answer().claims) for rival in rivals]

    assert sum(taken) == 2
    assert deployment.lane(user)["night_reserved_usd"] == 2
