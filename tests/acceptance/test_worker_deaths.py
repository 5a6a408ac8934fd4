"""Deaths in a pool of several processes: each is told, of the right runs, whoever came after."""

from collections.abc import Iterator

import pytest

from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from tests.support.rivals import lane_held_for_long
from tests.support.workers import Shift, Worker, running_worker, shared_shift


@pytest.fixture(scope="module")
def shift(postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis) -> Iterator[Shift]:
    """Leases and beats longer than every test here: deaths are told by nothing else."""
    clocks = {"lease_seconds": 60, "worker_liveness": 60}
    with shared_shift(postgres, template, redis, concurrency=2, **clocks) as shift:
        yield shift


@pytest.fixture(scope="module")
def worker(shift: Shift) -> Iterator[Worker]:
    with running_worker(shift.settings) as worker:
        yield worker


def test_only_the_run_that_died_is_recorded_as_crashed(shift: Shift, worker: Worker) -> None:
    neighbour = shift.send("sleep", {"seconds": 6})
    for _ in range(2):
        task_id = shift.send("crash", {"how": "kill"}, max_attempts=1)
        shift.reaches(task_id, "dead_lettered", timeout=5)
        assert shift.outcomes(task_id) == ["crash"]
        assert shift.deployment.state(neighbour) == "running"

    shift.reaches(neighbour, "completed")


def test_a_death_is_recorded_although_a_new_process_took_its_place(
    shift: Shift, worker: Worker
) -> None:
    """The lane is held, so nothing can be said; others come to run where the dead one ran."""
    neighbour, task_id = (shift.send("sleep", {"seconds": 300}, max_attempts=1) for _ in range(2))
    before = worker.children()
    shift.deployment.run("UPDATE agents SET slots = 6")  # or nobody else could come
    others = [
        shift.claimed(shift.deployment.task(shift.deployment.user(), type="echo")) for _ in range(4)
    ]

    with lane_held_for_long(str(shift.settings.database_url), shift.user):
        for child in before:
            child.kill()
        shift.publish(*others)
        for other in others:
            shift.reaches(other.claim.task_id, "completed", timeout=30)
        assert {shift.deployment.state(one) for one in (neighbour, task_id)} == {"running"}

    for one in (neighbour, task_id):
        shift.reaches(one, "dead_lettered", timeout=30)
        assert shift.outcomes(one) == ["crash"]


def test_a_process_that_celery_killed_is_recorded_as_soon(shift: Shift, worker: Worker) -> None:
    """Celery calls a process that it was asked to kill terminated, and no failure."""
    sleep = {"seconds": 300}
    task_id = shift.deployment.task(shift.user, type="sleep", payload=sleep, max_attempts=1)
    claimed = shift.claimed(task_id)
    shift.publish(claimed)
    shift.reaches(task_id, "running")

    shift.publisher.terminate(claimed.claim)

    shift.reaches(task_id, "dead_lettered", timeout=5)
