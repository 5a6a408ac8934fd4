"""A real worker at a ceiling: it pauses, asks, is given more, and completes."""

from collections.abc import Iterator

import pytest

from overnight_server.control.budgets import approve, set_night_budget, stop
from overnight_server.insight.budgets import list_approvals
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from tests.support.invariants import told, violations
from tests.support.workers import (
    Shift,
    Worker,
    running_worker,
    shared_shift,
)

ACTOR = "human:test"


@pytest.fixture(scope="module")
def shift(postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis) -> Iterator[Shift]:
    with shared_shift(postgres, template, redis, lease_seconds=8) as shift:
        yield shift


@pytest.fixture(scope="module")
def worker(shift: Shift) -> Iterator[Worker]:
    with running_worker(shift.settings) as worker:
        yield worker


def test_a_task_at_its_cost_ceiling_waits_for_approval_and_completes(
    shift: Shift, worker: Worker
) -> None:
    calls = {"calls": 4, "usd": 0.5, "seconds": 0.6}
    task_id = shift.send("cost", calls, max_cost_usd=1.0)

    row = shift.reaches(task_id, "pending")

    assert (row["awaits_budget"], float(row["cost_usd"]), row["attempts"]) == ("task", 1.0, 0)
    assert row["error"] == "the task has cost $1.00 of its $1.00"
    assert shift.deployment.lane(shift.user)["active"] == 0
    [asking] = list_approvals(shift.deployment.app)
    assert asking.limit_usd == 1.0

    approve(shift.deployment.app, task_id, 2.5, actor=ACTOR)
    shift.publish(shift.claimed(task_id))

    row = shift.reaches(task_id, "completed")
    assert (float(row["cost_usd"]), row["output"]) == (3.0, {"usd": 2.0})
    assert shift.outcomes(task_id) == ["suspended", "completed"]
    found = violations(shift.deployment.owner)
    assert not found, told(found)


def test_a_heartbeat_stops_a_run_when_the_nights_budget_is_used_up(
    shift: Shift, worker: Worker
) -> None:
    set_night_budget(shift.deployment.app, shift.user, 4.0, actor=ACTOR)  # 3.00 of it are spent
    task_id = shift.send("cost", {"calls": 100, "usd": 0.6, "seconds": 0.7})

    row = shift.reaches(task_id, "pending")

    assert row["awaits_budget"] == "night"
    assert 1.0 <= float(row["cost_usd"]) <= 3.0
    assert row["attempts"] == 0
    stop(shift.deployment.app, task_id, actor=ACTOR)
    set_night_budget(shift.deployment.app, shift.user, None, actor=ACTOR)


def test_a_run_that_ignores_its_budget_is_killed_and_waits_for_approval(
    shift: Shift, worker: Worker
) -> None:
    # One call, and then a pause that looks at nothing.
    task_id = shift.send("cost", {"calls": 2, "usd": 1.0, "seconds": 300}, max_cost_usd=0.5)

    row = shift.reaches(task_id, "pending", timeout=10)

    assert row["awaits_budget"] == "task"
    assert shift.outcomes(task_id) == ["suspended"]
