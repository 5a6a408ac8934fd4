"""A worker runs async handlers: a stop cancels their tasks, and what never awaits is killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.maintenance.reap import reap
from tests.support.wait import wait_until
from tests.support.workers import Worker, WorkerHarness, is_gone, running_worker, shared_harness


@pytest.fixture(scope="module")
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> Iterator[WorkerHarness]:
    changes = {"lease_seconds": 8, "handlers": "tests.support.async_handlers"}
    with shared_harness(postgres, template, redis, **changes) as harness:
        yield harness


@pytest.fixture(scope="module")
def worker(harness: WorkerHarness) -> Iterator[Worker]:
    with running_worker(harness.settings) as worker:
        yield worker
        harness.reaches(harness.send("echo"), "completed")
        assert worker.process.poll() is None


@pytest.mark.usefixtures("worker")
def test_the_context_works_inside_an_async_handler(harness: WorkerHarness) -> None:
    task_id = harness.send("async.context")

    row = harness.reaches(task_id, "completed")

    assert row["output"] == {"is_artifact": True}
    assert row["cost_usd"] == pytest.approx(0.25)


def test_a_cancel_cancels_the_tasks_of_an_async_handler(
    harness: WorkerHarness, worker: Worker, tmp_path: Path
) -> None:
    task_id = harness.send("async.sleep", {"file": str(tmp_path / "ended")})
    harness.reaches(task_id, "running")
    [child] = worker.children()

    cancel(harness.deployment.app, harness.user, task_id, actor="human:test")

    harness.reaches(task_id, "cancelled")
    assert (tmp_path / "ended").read_text() == "one,two"
    assert worker.children() == [child], "nothing was ended by force"


def test_a_timeout_cancels_the_tasks_of_an_async_handler(
    harness: WorkerHarness, worker: Worker, tmp_path: Path
) -> None:
    payload = {"file": str(tmp_path / "ended")}
    task_id = harness.send("async.sleep", payload, timeout_seconds=1, max_attempts=1)
    harness.reaches(task_id, "running")
    [child] = worker.children()

    harness.reaches(task_id, "dead_lettered")

    assert harness.outcomes(task_id) == ["timeout"]
    assert (tmp_path / "ended").read_text() == "one,two"
    assert worker.children() == [child]


def test_a_lost_claim_cancels_the_tasks_of_an_async_handler(
    harness: WorkerHarness, worker: Worker, tmp_path: Path
) -> None:
    task_id = harness.send("async.sleep", {"file": str(tmp_path / "ended")}, max_attempts=1)
    harness.reaches(task_id, "running")

    def is_taken_away() -> bool:
        harness.deployment.run("UPDATE tasks SET expires_at = clock() WHERE id = :id", id=task_id)
        reap(harness.deployment.dispatcher)
        return harness.deployment.state(task_id) != "running"

    wait_until(is_taken_away, what="the reaper to take the task away")

    wait_until((tmp_path / "ended").exists, what="the handler to be cancelled")
    assert worker.process.poll() is None


def test_an_async_handler_that_never_awaits_is_killed_after_its_timeout(
    harness: WorkerHarness, worker: Worker
) -> None:
    task_id = harness.send("async.block", timeout_seconds=1, max_attempts=1)
    harness.reaches(task_id, "running")
    [child] = worker.children()

    harness.reaches(task_id, "dead_lettered", timeout=10)

    assert harness.outcomes(task_id) == ["timeout"]
    wait_until(lambda: is_gone(child), what="the process of the run to end")
