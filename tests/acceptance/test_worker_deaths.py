"""Deaths in a pool of several processes: each is told, of the right runs, whoever came after."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight_server.domain.ids import show_task
from overnight_server.gate.claim import BundleLimits, ClaimSettings, claim
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from tests.support.deployment import CLAIM_TTL, LIVENESS
from tests.support.rivals import lane_held_for_long
from tests.support.wait import wait_until
from tests.support.workers import Worker, WorkerHarness, running_worker, shared_harness


@pytest.fixture(scope="module")
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> Iterator[WorkerHarness]:
    """Leases and beats longer than every test here: deaths are told by nothing else."""
    clocks = {"lease_seconds": 60, "worker_liveness": 60}
    with shared_harness(postgres, template, redis, concurrency=2, **clocks) as harness:
        yield harness


@pytest.fixture(scope="module")
def worker(harness: WorkerHarness) -> Iterator[Worker]:
    with running_worker(harness.settings) as worker:
        yield worker


def test_only_the_run_that_died_is_recorded_as_crashed(
    harness: WorkerHarness, worker: Worker
) -> None:
    neighbour = harness.send("sleep", {"seconds": 6})
    for _ in range(2):
        task_id = harness.send("crash", {"how": "kill"}, max_attempts=1)
        harness.reaches(task_id, "dead_lettered", timeout=5)
        assert harness.outcomes(task_id) == ["crash"]
        assert harness.deployment.state(neighbour) == "running"

    harness.reaches(neighbour, "completed")


def test_a_death_is_recorded_although_a_new_process_took_its_place(
    harness: WorkerHarness, worker: Worker
) -> None:
    """The lane is held, so nothing can be said; others come to run where the dead one ran."""
    neighbour, task_id = (harness.send("sleep", {"seconds": 300}, max_attempts=1) for _ in range(2))
    before = worker.children()
    harness.deployment.run("UPDATE agents SET slots = 6")  # or nobody else could come
    others = [
        harness.claimed(harness.deployment.task(harness.deployment.user(), type="echo"))
        for _ in range(4)
    ]

    with lane_held_for_long(str(harness.settings.database_url), harness.user):
        for child in before:
            child.kill()
        harness.publish(*others)
        for other in others:
            harness.reaches(other.claim.task_id, "completed", timeout=30)
        assert {harness.deployment.state(one) for one in (neighbour, task_id)} == {"running"}

    for one in (neighbour, task_id):
        harness.reaches(one, "dead_lettered", timeout=30)
        assert harness.outcomes(one) == ["crash"]


def test_a_process_that_celery_killed_is_recorded_as_soon(
    harness: WorkerHarness, worker: Worker
) -> None:
    """Celery calls a process that it was asked to kill terminated, and no failure."""
    sleep = {"seconds": 300}
    task_id = harness.deployment.task(harness.user, type="sleep", payload=sleep, max_attempts=1)
    claimed = harness.claimed(task_id)
    harness.publish(claimed)
    harness.reaches(task_id, "running")

    harness.publisher.terminate(claimed.claim)

    harness.reaches(task_id, "dead_lettered", timeout=5)


def test_a_crash_makes_no_handler_of_another_user_run_twice(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis, tmp_path: Path
) -> None:
    """Nine short tasks of other users and one that kills its process travel in one message."""
    record = tmp_path / "runs"
    changes = {"handlers": "tests.support.counted_handler", "lease_seconds": 60}
    with shared_harness(postgres, template, redis, concurrency=1, **changes) as harness:
        deployment = harness.deployment
        deployment.run(
            "INSERT INTO type_durations (type, seconds) VALUES ('counted', 0.001), ('crash', 0.001)"
        )
        with running_worker(harness.settings):
            payload = {"file": str(record)}
            others = [
                deployment.task(deployment.user(), type="counted", payload=payload)
                for _ in range(9)
            ]
            killer = deployment.task(harness.user, type="crash", max_attempts=1)
            limits = ClaimSettings(CLAIM_TTL, LIVENESS, bundle_limits=BundleLimits(0.25, 50))
            claims = claim(
                deployment.dispatcher, harness.settings.pool, holder="d", claim_settings=limits
            ).claims
            assert len({claimed.bundle for claimed in claims}) == 1
            # In the middle, so that some have ended and some have not begun.
            claims = sorted(claims, key=lambda one: one.claim.task_id == killer)
            harness.publish(*claims[:5], claims[-1], *claims[5:-1])
            harness.reaches(killer, "ready", timeout=30)

            def all_completed() -> bool:
                harness.publish(*deployment.claim().claims)
                return all(deployment.state(one) == "completed" for one in others)

            wait_until(all_completed, timeout=60, what="every task of the others")

    runs = record.read_text().split()
    assert sorted(runs) == sorted(show_task(one) for one in others)
