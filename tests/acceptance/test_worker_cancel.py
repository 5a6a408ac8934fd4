"""A cancel reaches a running worker at once, and does not wait for its next heartbeat."""

from collections.abc import Iterator

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.wakeups.wake import Waker
from tests.support.wait import wait_until
from tests.support.workers import Worker, WorkerHarness, is_gone, running_worker, shared_harness

HEARTBEAT_SECONDS = 60
# Far less than the interval of heartbeats, and enough for a busy machine.
SOON = 15


@pytest.fixture(scope="module")
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> Iterator[WorkerHarness]:
    with shared_harness(
        postgres, template, redis, heartbeat_interval=HEARTBEAT_SECONDS, lease_seconds=200
    ) as harness:
        yield harness


@pytest.fixture(scope="module")
def worker(harness: WorkerHarness) -> Iterator[Worker]:
    with running_worker(harness.settings) as worker:
        yield worker


@pytest.fixture
def waker(harness: WorkerHarness) -> Iterator[Waker]:
    waker = Waker(str(harness.settings.redis_url), harness.settings.redis_key_prefix)
    yield waker
    waker.close()


@pytest.mark.usefixtures("worker")
def test_a_cancelled_run_stops_long_before_its_next_heartbeat(
    harness: WorkerHarness, waker: Waker
) -> None:
    task_id = harness.send("sleep", {"seconds": 300})
    harness.reaches(task_id, "running")

    cancel(harness.deployment.app, harness.user, task_id, actor="human:test")
    waker.cancel_requested()

    harness.reaches(task_id, "cancelled", timeout=SOON)
    assert harness.outcomes(task_id) == ["cancelled"]


def test_a_run_that_ignores_its_cancel_is_killed_after_its_grace(
    harness: WorkerHarness, worker: Worker, waker: Waker
) -> None:
    task_id = harness.send("sleep", {"seconds": 300, "stubborn": True})
    harness.reaches(task_id, "running")
    [child] = worker.children()

    cancel(harness.deployment.app, harness.user, task_id, actor="human:test")
    waker.cancel_requested()

    harness.reaches(task_id, "cancelled", timeout=SOON)
    wait_until(lambda: is_gone(child), timeout=SOON, what="the run's process to end")


@pytest.mark.usefixtures("worker")
def test_a_cancel_wake_up_only_makes_other_runs_send_a_heartbeat(
    harness: WorkerHarness, waker: Waker
) -> None:
    task_id = harness.send("sleep", {"seconds": 300})
    harness.reaches(task_id, "running")
    lease = "SELECT expires_at FROM tasks WHERE id = :id"
    before = harness.deployment.one(lease, id=task_id)["expires_at"]

    def has_sent_a_heartbeat() -> bool:
        waker.cancel_requested()
        return bool(harness.deployment.one(lease, id=task_id)["expires_at"] > before)

    wait_until(has_sent_a_heartbeat, timeout=SOON, what="an early heartbeat")
    assert harness.deployment.state(task_id) == "running"
    cancel(harness.deployment.app, harness.user, task_id, actor="human:test")
    waker.cancel_requested()
    harness.reaches(task_id, "cancelled", timeout=SOON)
