"""A cancel reaches a running worker at once, and does not wait for its next heartbeat."""

from collections.abc import Iterator

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.wakeups.wake import Waker
from tests.support.waiting import wait_until
from tests.support.workers import Shift, Worker, is_gone, running_worker, shared_shift

HEARTBEAT_SECONDS = 60
# Far less than the interval of heartbeats, and enough for a busy machine.
SOON = 15


@pytest.fixture(scope="module")
def shift(postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis) -> Iterator[Shift]:
    with shared_shift(
        postgres, template, redis, heartbeat_interval=HEARTBEAT_SECONDS, lease_seconds=200
    ) as shift:
        yield shift


@pytest.fixture(scope="module")
def worker(shift: Shift) -> Iterator[Worker]:
    with running_worker(shift.settings) as worker:
        yield worker


@pytest.fixture
def waker(shift: Shift) -> Iterator[Waker]:
    waker = Waker(str(shift.settings.redis_url), shift.settings.redis_key_prefix)
    yield waker
    waker.close()


@pytest.mark.usefixtures("worker")
def test_a_cancelled_run_stops_long_before_its_next_heartbeat(shift: Shift, waker: Waker) -> None:
    task_id = shift.send("sleep", {"seconds": 300})
    shift.reaches(task_id, "running")

    cancel(shift.deployment.app, shift.user, task_id, actor="human:test")
    waker.cancel_requested()

    shift.reaches(task_id, "cancelled", timeout=SOON)
    assert shift.outcomes(task_id) == ["cancelled"]


def test_a_run_that_ignores_its_cancel_is_killed_after_its_grace(
    shift: Shift, worker: Worker, waker: Waker
) -> None:
    task_id = shift.send("sleep", {"seconds": 300, "stubborn": True})
    shift.reaches(task_id, "running")
    [child] = worker.children()

    cancel(shift.deployment.app, shift.user, task_id, actor="human:test")
    waker.cancel_requested()

    shift.reaches(task_id, "cancelled", timeout=SOON)
    wait_until(lambda: is_gone(child), timeout=SOON, what="the run's process to end")


@pytest.mark.usefixtures("worker")
def test_a_cancel_wake_up_only_makes_other_runs_send_a_heartbeat(
    shift: Shift, waker: Waker
) -> None:
    task_id = shift.send("sleep", {"seconds": 300})
    shift.reaches(task_id, "running")
    lease = "SELECT expires_at FROM tasks WHERE id = :id"
    before = shift.deployment.one(lease, id=task_id)["expires_at"]

    def has_sent_a_heartbeat() -> bool:
        waker.cancel_requested()
        return bool(shift.deployment.one(lease, id=task_id)["expires_at"] > before)

    wait_until(has_sent_a_heartbeat, timeout=SOON, what="an early heartbeat")
    assert shift.deployment.state(task_id) == "running"
    cancel(shift.deployment.app, shift.user, task_id, actor="human:test")
    waker.cancel_requested()
    shift.reaches(task_id, "cancelled", timeout=SOON)
