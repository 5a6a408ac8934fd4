"""The fairness report from a real database."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta

import pytest

from overnight.models.admin import Fairness, UserShare
from overnight_server.control.budgets import set_dag_budget, set_night_budget
from overnight_server.control.pauses import EVERYTHING, PauseSubject, pause, resume
from overnight_server.domain.results import Raised, Returned
from overnight_server.insight import fairness_report
from overnight_server.insight.fairness_report import fairness
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.maintenance.reap import reap
from overnight_server.maintenance.reset import reset_cycles
from overnight_server.maintenance.starvation_alarm import report_starving_users
from overnight_server.outcome.presence import leave
from tests.support.deployment import AGENT, CLAIM_SETTINGS, LOOSE, POOL, Deployment

MINUTE = timedelta(minutes=1)


def read(deployment: Deployment, **options: timedelta) -> Fairness:
    return fairness(deployment.dispatcher, claim_settings=CLAIM_SETTINGS, **options)


def of(report: Fairness, user: str) -> UserShare:
    [share] = [entry for entry in report.users if entry.user == user]
    return share


def run_all(deployment: Deployment, *, minutes: float = 10) -> None:
    """Let everything that may start now start, and end after a while."""
    runs = [deployment.start(claimed) for claimed in deployment.claim().claims]
    deployment.move_clock(minutes * MINUTE)
    for run in runs:
        assert run is not None
        deployment.settle(run, Returned())


def test_waits_count_from_ready_to_start(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    ada = deployment.user(name="ada")
    for _ in range(2):
        deployment.task(ada)
    run_all(deployment)
    run_all(deployment)

    report = read(deployment)

    share = of(report, "ada")
    assert (report.starts, share.started, share.waiting) == (2, 2, 0)
    assert share.longest_wait == pytest.approx(600, abs=30)
    assert share.median_wait == pytest.approx(300, abs=30)
    assert share.slot_seconds == pytest.approx(1200, abs=60)
    assert report.longest_wait_seconds == share.longest_wait


def test_a_retry_waits_only_since_it_was_ready_again(deployment: Deployment) -> None:
    deployment.agent()
    run = deployment.running(deployment.user(name="ada"))
    deployment.move_clock(60 * MINUTE)
    deployment.settle(run, Raised("error", "no luck"))
    deployment.run("UPDATE tasks SET state = 'ready', retry_at = NULL")
    deployment.move_clock(5 * MINUTE)
    run_all(deployment)

    assert of(read(deployment), "ada").longest_wait == pytest.approx(300, abs=30)


def test_the_gate_serves_a_small_user_beside_a_large_one_evenly(deployment: Deployment) -> None:
    deployment.agent(slots=2)
    large, small = deployment.user(name="large"), deployment.user(name="small")
    for _ in range(12):
        deployment.task(large)
    for _ in range(4):
        deployment.task(small)
    for _ in range(8):
        run_all(deployment)

    report = read(deployment, since=timedelta(hours=2))

    assert report.jain is not None
    assert report.jain > 0.98
    assert of(report, "small").longest_wait <= of(report, "large").longest_wait
    assert report.starving == []


def test_a_user_who_only_waits_is_in_the_report(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    deployment.running(deployment.user(name="bob"))
    deployment.task(deployment.user(name="ada"))
    deployment.move_clock(10 * MINUTE)

    share = of(read(deployment), "ada")

    assert (share.started, share.waiting, share.median_wait) == (0, 1, None)
    assert share.longest_wait == pytest.approx(600, abs=30)


def test_a_claim_whose_message_was_lost_does_not_end_the_wait(deployment: Deployment) -> None:
    deployment.agent()
    deployment.task(deployment.user(name="ada"))
    deployment.claim()
    deployment.move_clock(2 * MINUTE)
    assert reap(deployment.dispatcher) == 1
    waiting = of(read(deployment), "ada").longest_wait
    run_all(deployment)

    assert waiting == pytest.approx(120, abs=30)
    assert of(read(deployment), "ada").longest_wait == pytest.approx(120, abs=30)


def wait_then_run(deployment: Deployment, release: Callable[[], object]) -> None:
    """Let a task of Ada wait: 60 minutes until `release`, then ten for a slot; run it last."""
    deployment.move_clock(60 * MINUTE)
    assert not deployment.claim().claims
    assert of(read(deployment), "ada").longest_wait < 30
    release()
    deployment.move_clock(10 * MINUTE)
    run_all(deployment)


def assert_ten_minutes(deployment: Deployment) -> None:
    """Assert that only the wait for a slot counts."""
    share = of(read(deployment), "ada")
    assert share.started == 1
    assert share.longest_wait == pytest.approx(600, abs=30)


def test_waiting_for_a_worker_is_left_out(deployment: Deployment) -> None:
    deployment.task(deployment.user(name="ada"))

    wait_then_run(deployment, deployment.agent)

    assert_ten_minutes(deployment)


def test_waiting_for_a_capability_and_a_handler_is_left_out(deployment: Deployment) -> None:
    deployment.agent(agent_id="plain:1:boot", pool="plain", types=["other"])
    deployment.task(deployment.user(name="ada"), required_capabilities=["gpu"])
    deployment.agent(agent_id="other:1:boot", pool="other", capabilities=["gpu"], types=["other"])

    wait_then_run(
        deployment, lambda: deployment.agent(capabilities=["gpu", "moon"], types=["echo"])
    )

    assert_ten_minutes(deployment)


def test_the_silence_of_a_lost_worker_is_left_out(deployment: Deployment) -> None:
    deployment.agent()
    leave(deployment.dispatcher, AGENT)
    deployment.task(deployment.user(name="ada"))

    wait_then_run(deployment, deployment.agent)

    assert_ten_minutes(deployment)


def test_waiting_for_the_night_window_is_left_out(deployment: Deployment) -> None:
    deployment.set_clock(datetime(2026, 11, 16, 20, 55, tzinfo=UTC))
    deployment.agent()
    ada = deployment.user(name="ada", window_zone="UTC", window_from=time(22), window_to=time(6))
    deployment.claim()  # computes that the window is closed
    deployment.task(ada)

    deployment.set_clock(datetime(2026, 11, 16, 21, 55, tzinfo=UTC))
    assert of(read(deployment), "ada").longest_wait == 0
    deployment.set_clock(datetime(2026, 11, 16, 22, 0, tzinfo=UTC))
    reset_cycles(deployment.dispatcher)
    deployment.set_clock(datetime(2026, 11, 16, 22, 10, tzinfo=UTC))
    for claimed in deployment.claim().claims:
        deployment.start(claimed)

    assert_ten_minutes(deployment)


def test_tasks_created_after_closing_wait_for_the_window_under_continue(
    deployment: Deployment,
) -> None:
    deployment.set_clock(datetime(2026, 11, 16, 5, 30, tzinfo=UTC))
    deployment.agent(slots=0)
    ada = deployment.user(
        name="ada",
        window_zone="UTC",
        window_from=time(22),
        window_to=time(6),
        window_at_closing="continue",
    )
    bob = deployment.user(
        name="bob",
        window_zone="UTC",
        window_from=time(22),
        window_to=time(6),
        window_at_closing="continue",
    )
    deployment.claim()
    deployment.task(ada)
    deployment.set_clock(datetime(2026, 11, 16, 6, 30, tzinfo=UTC))
    reset_cycles(deployment.dispatcher)
    deployment.task(bob)
    deployment.set_clock(datetime(2026, 11, 16, 7, 30, tzinfo=UTC))

    report = read(deployment)

    assert of(report, "ada").longest_wait == pytest.approx(2 * 3600, abs=30)
    assert of(report, "bob").longest_wait == 0


def test_waiting_for_the_night_s_budget_is_left_out(deployment: Deployment) -> None:
    deployment.agent()
    ada = deployment.user(name="ada", night_budget_usd=0)
    deployment.task(ada)

    wait_then_run(deployment, lambda: set_night_budget(deployment.owner, ada, 5, actor="human:op"))

    assert_ten_minutes(deployment)


def test_waiting_for_the_budget_of_the_graph_is_left_out(deployment: Deployment) -> None:
    deployment.agent()
    ada = deployment.user(name="ada")
    [task, _] = [
        submitted.task_id
        for submitted in submit_graph(
            deployment.app,
            ada,
            [NewTask("first", "echo"), NewTask("second", "other")],
            LOOSE,
            budget_usd=1,
        )
    ]
    dag = deployment.row(task)["dag_id"]
    deployment.run("UPDATE dags SET spent_usd = 1")
    deployment.run(
        "UPDATE tasks SET state = 'cancelled', finished_at = clock() WHERE type = 'other'"
    )

    wait_then_run(
        deployment, lambda: set_dag_budget(deployment.dispatcher, dag, 5, actor="human:op")
    )

    assert_ten_minutes(deployment)


def test_a_pause_of_everything_and_of_the_pool_is_left_out(deployment: Deployment) -> None:
    deployment.agent()
    deployment.task(deployment.user(name="ada"))
    pool = PauseSubject(pool=POOL)
    pause(deployment.dispatcher, pool, actor="human:op")
    deployment.move_clock(30 * MINUTE)
    pause(deployment.dispatcher, EVERYTHING, actor="human:op")
    resume(deployment.dispatcher, pool, actor="human:op")

    wait_then_run(deployment, lambda: resume(deployment.dispatcher, EVERYTHING, actor="human:op"))

    assert_ten_minutes(deployment)


def test_a_task_that_asks_for_money_is_not_waiting_for_a_slot(deployment: Deployment) -> None:
    deployment.agent()
    deployment.task(deployment.user(name="ada", night_budget_usd=1), estimated_cost_usd=2)
    deployment.move_clock(10 * MINUTE)

    assert of(read(deployment), "ada").longest_wait == 0


def test_users_without_ready_tasks_have_no_holds(deployment: Deployment) -> None:
    """A million users with a night window must not write a million rows each evening."""
    ada = deployment.user()
    deployment.run("UPDATE lanes SET paused = true")
    assert deployment.rows("SELECT 1 FROM holds") == []

    task = deployment.task(ada)
    deployment.run("UPDATE tasks SET state = 'cancelled', finished_at = clock()")

    [hold] = deployment.rows("SELECT * FROM holds")
    assert (hold["subject"], hold["reason"]) == (ada, "pause")
    assert hold["ended_at"] is not None
    assert task


def test_runs_before_the_period_are_left_out(deployment: Deployment) -> None:
    deployment.agent()
    deployment.task(deployment.user(name="ada"))
    run_all(deployment)
    deployment.move_clock(timedelta(hours=2))

    assert read(deployment, since=timedelta(hours=1)).users == []


def test_a_period_with_too_many_runs_is_shortened_and_says_so(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fairness_report, "MOST_STARTS", 2)
    deployment.agent(slots=1)
    ada = deployment.user(name="ada")
    for _ in range(4):
        deployment.task(ada)
    for _ in range(4):
        run_all(deployment, minutes=30)

    report = read(deployment, since=timedelta(hours=2, minutes=10))

    assert report.is_shortened
    assert report.starts <= 2
    assert report.until_at - report.since_at < timedelta(hours=2)


def test_starving_users_are_reported(deployment: Deployment) -> None:
    """Ada's lane is kept from the gate's sight, as a fault in it might."""
    deployment.agent(slots=2)
    ada, bob = deployment.user(name="ada"), deployment.user(name="bob")
    deployment.task(ada)
    deployment.move_clock(20 * MINUTE)
    deployment.task(bob)
    deployment.run("UPDATE lanes SET paused = true WHERE user_id = :id", id=ada)
    run_all(deployment, minutes=1)
    deployment.run("UPDATE lanes SET paused = false WHERE user_id = :id", id=ada)

    report = read(deployment)

    [alarm] = report.starving
    assert alarm.user == "ada"
    assert alarm.waited_seconds == pytest.approx(21 * 60, abs=30)
    assert read(deployment, starving_after=timedelta(hours=1)).starving == []


def test_a_lane_that_is_skipped_by_mistake_is_reported_and_served(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else is served, and the pool's slots are free."""
    deployment.agent(slots=2)
    ada = deployment.user(name="ada")
    deployment.task(ada)
    deployment.run("UPDATE lanes SET skipped_by_pools = ARRAY['default']")
    deployment.move_clock(20 * MINUTE)
    assert deployment.claim().claims == []

    assert [user.user for user in read(deployment).starving] == ["ada"]
    with caplog.at_level(logging.ERROR):
        assert report_starving_users(deployment.dispatcher, CLAIM_SETTINGS) == 1

    assert "user_starving" in caplog.text
    assert str(ada) in caplog.text
    assert len(deployment.claim().claims) == 1
    assert report_starving_users(deployment.dispatcher, CLAIM_SETTINGS) == 0


def test_nobody_starves_while_long_runs_occupy_every_slot(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    deployment.running(deployment.user(name="bob"))
    deployment.task(deployment.user(name="ada"))

    deployment.move_clock(20 * MINUTE)

    assert read(deployment).starving == []


def test_a_user_whose_tasks_no_worker_can_run_is_not_starving(deployment: Deployment) -> None:
    deployment.agent(slots=2)
    ada, bob = deployment.user(name="ada"), deployment.user(name="bob")
    deployment.task(ada, required_capabilities=["moon"])
    deployment.move_clock(20 * MINUTE)
    deployment.task(bob)
    run_all(deployment, minutes=1)

    assert read(deployment).starving == []


def test_a_paused_user_is_not_starving(deployment: Deployment) -> None:
    deployment.agent(slots=2)
    ada, bob = deployment.user(name="ada"), deployment.user(name="bob")
    deployment.task(ada)
    deployment.run("UPDATE lanes SET paused = true WHERE user_id = :id", id=ada)
    deployment.task(bob)
    run_all(deployment, minutes=30)

    report = read(deployment, since=timedelta(hours=1))

    assert (of(report, "ada").service, of(report, "bob").service) == (None, 1)
    assert of(report, "ada").waiting == 1


def test_the_report_of_an_empty_deployment_is_empty(deployment: Deployment) -> None:
    report = read(deployment)

    assert (report.jain, report.users, report.starving, report.starts) == (None, [], [], 0)
