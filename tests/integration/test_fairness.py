"""The fairness report from a real database."""

import logging
from datetime import timedelta

import pytest

from overnight.models.admin import Fairness
from overnight_server.domain.fairness_report import FairnessReceipt
from overnight_server.domain.results import Raised, Returned
from overnight_server.insight import fairness_report as receipts
from overnight_server.insight.fairness_report import fairness
from overnight_server.maintenance.starvation_alarm import report_starving_users
from tests.support.deployment import CLAIM_SETTINGS, Deployment

MINUTE = timedelta(minutes=1)


def read(deployment: Deployment, **options: timedelta) -> Fairness:
    return fairness(deployment.dispatcher, claim_settings=CLAIM_SETTINGS, **options)


def of(report: Fairness, user: str) -> FairnessReceipt:
    [receipt] = [entry for entry in report.users if entry.user == user]
    return receipt


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

    receipt = of(report, "ada")
    assert (report.starts, receipt.started, receipt.waiting) == (2, 2, 0)
    assert receipt.longest_wait == pytest.approx(600, abs=30)
    assert receipt.median_wait == pytest.approx(300, abs=30)
    assert receipt.slot_seconds == pytest.approx(1200, abs=60)
    assert report.longest_wait_seconds == receipt.longest_wait


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
    deployment.task(deployment.user(name="ada"))
    deployment.move_clock(10 * MINUTE)

    receipt = of(read(deployment), "ada")

    assert (receipt.started, receipt.waiting, receipt.median_wait) == (0, 1, None)
    assert receipt.longest_wait == pytest.approx(600, abs=30)


def test_runs_before_the_period_are_left_out(deployment: Deployment) -> None:
    deployment.agent()
    deployment.task(deployment.user(name="ada"))
    run_all(deployment)
    deployment.move_clock(timedelta(hours=2))

    assert read(deployment, since=timedelta(hours=1)).users == []


def test_a_period_with_too_many_runs_is_shortened_and_says_so(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "MOST_STARTS", 2)
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
