"""A real worker at a ceiling: it pauses, asks, is given more, and completes."""

from collections.abc import Iterator

import pytest

from overnight_server.control.budgets import approve, set_night_budget, stop
from overnight_server.insight.budgets import list_approvals
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from tests.support.invariants import describe_violations, violations
from tests.support.workers import (
    Worker,
    WorkerHarness,
    running_worker,
    shared_harness,
)

ACTOR = "human:test"


@pytest.fixture(scope="module")
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> Iterator[WorkerHarness]:
    with shared_harness(postgres, template, redis, lease_seconds=8) as harness:
        yield harness


@pytest.fixture(scope="module")
def worker(harness: WorkerHarness) -> Iterator[Worker]:
    with running_worker(harness.settings) as worker:
        yield worker


def test_a_task_at_its_cost_ceiling_waits_for_approval_and_completes(
    harness: WorkerHarness, worker: Worker
) -> None:
    calls = {"calls": 4, "usd": 0.5, "seconds": 0.6}
    task_id = harness.send("cost", calls, max_cost_usd=1.0)

    row = harness.reaches(task_id, "pending")

    assert (row["awaits_budget"], float(row["cost_usd"]), row["attempts"]) == ("task", 1.0, 0)
    assert row["error"] == "the task has cost $1.00 of its $1.00"
    assert harness.deployment.lane(harness.user)["active"] == 0
    [asking] = list_approvals(harness.deployment.app)
    assert asking.limit_usd == 1.0

    approve(harness.deployment.app, task_id, 2.5, actor=ACTOR)
    harness.publish(harness.claimed(task_id))

    row = harness.reaches(task_id, "completed")
    assert (float(row["cost_usd"]), row["output"]) == (3.0, {"usd": 2.0})
    assert harness.outcomes(task_id) == ["suspended", "completed"]
    violated = violations(harness.deployment.owner)
    assert not violated, describe_violations(violated)


def test_a_cost_that_uses_up_the_nights_budget_stops_the_run_at_once(
    harness: WorkerHarness, worker: Worker
) -> None:
    set_night_budget(harness.deployment.app, harness.user, 4.0, actor=ACTOR)  # 3.00 of it are spent
    # No pause between the calls: only the answer to the report itself can stop the run in time.
    task_id = harness.send("cost", {"calls": 100, "usd": 0.6, "seconds": 0})

    row = harness.reaches(task_id, "pending")

    assert row["awaits_budget"] == "night"
    assert float(row["cost_usd"]) == 1.2
    assert row["attempts"] == 0
    stop(harness.deployment.app, task_id, actor=ACTOR)
    set_night_budget(harness.deployment.app, harness.user, None, actor=ACTOR)


def test_a_run_that_ignores_its_budget_is_killed_and_waits_for_approval(
    harness: WorkerHarness, worker: Worker
) -> None:
    # One call, and then a pause that looks at nothing.
    task_id = harness.send("cost", {"calls": 2, "usd": 1.0, "seconds": 300}, max_cost_usd=0.5)

    row = harness.reaches(task_id, "pending", timeout=10)

    assert row["awaits_budget"] == "task"
    assert harness.outcomes(task_id) == ["suspended"]
