"""A worker that must stop hands its runs back, whatever state they or the servers are in."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from sqlalchemy.engine import make_url

from overnight_server.dispatch.publish import Publisher
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.maintenance.reap import reap
from tests.support.deployment import Deployment
from tests.support.rivals import lane_held_for_long
from tests.support.wait import wait_until
from tests.support.workers import (
    ROOT,
    WorkerHarness,
    environment,
    is_gone,
    listening_on,
    running_worker,
    worker_command,
    worker_settings,
)

# Grace of one second, then what Celery needs to be gone.
PROMPTLY = 10


@pytest.fixture
def harness(
    database_url: str, redis: EmbeddedRedis, deployment: Deployment
) -> Iterator[WorkerHarness]:
    settings = worker_settings(database_url, redis.url, concurrency=2)
    publisher = Publisher(settings)
    yield WorkerHarness(deployment, settings, publisher, deployment.user())
    publisher.close()


@pytest.mark.parametrize("signals", [["TERM"], ["INT", "INT"], ["QUIT"]], ids="-".join)
def test_a_worker_that_shuts_down_gives_its_runs_back(
    harness: WorkerHarness, signals: list[str]
) -> None:
    with running_worker(harness.settings) as worker:
        willing = harness.send("sleep", {"seconds": 300})
        stubborn = harness.send("sleep", {"seconds": 300, "stubborn": True})
        for task_id in (willing, stubborn):
            harness.reaches(task_id, "running")

        for name in signals:
            worker.signal(signal.Signals[f"SIG{name}"])
        code = worker.ended(within=PROMPTLY)

    rows = [harness.deployment.row(task_id) for task_id in (willing, stubborn)]
    assert code == 0
    assert [(row["state"], row["attempts"], row["epoch"]) for row in rows] == [("ready", 0, 1)] * 2
    assert harness.outcomes(stubborn) == ["interrupted"]
    assert harness.deployment.one("SELECT sum(seconds) AS billed FROM usage_ledger")["billed"] == 0
    assert [agent["status"] for agent in harness.deployment.rows("SELECT status FROM agents")] == [
        "offline"
    ]


@pytest.mark.parametrize("kind", ["sleep", "spin"])
def test_a_run_costs_nothing_although_its_shutdown_could_not_be_recorded(
    harness: WorkerHarness, kind: str
) -> None:
    how = {"seconds": 300, "stubborn": True, "gil": True}
    with running_worker(harness.settings) as worker:
        runs = [harness.send(kind, how) for _ in range(2)]
        children = worker.children()

        worker.signal(signal.SIGTERM)
        with lane_held_for_long(str(harness.settings.database_url), harness.user):
            wait_until(lambda: all(map(is_gone, children)), what="the runs to be ended by force")
        worker.ended(within=PROMPTLY)

    rows = [harness.deployment.row(task_id) for task_id in runs]
    assert [(row["state"], row["attempts"]) for row in rows] == [("ready", 0)] * 2
    assert [harness.outcomes(task_id) for task_id in runs] == [["interrupted"]] * 2
    assert harness.deployment.one("SELECT sum(seconds) AS billed FROM usage_ledger")["billed"] == 0


def test_a_signal_to_the_whole_process_group_loses_nothing(harness: WorkerHarness) -> None:
    with running_worker(harness.settings) as worker:
        task_id = harness.send("sleep", {"seconds": 300, "stubborn": True})
        harness.reaches(task_id, "running")

        os.killpg(worker.process.pid, signal.SIGTERM)
        code = worker.ended(within=PROMPTLY)

    row = harness.deployment.row(task_id)
    assert (code, row["state"], row["attempts"]) == (0, "ready", 0)


def test_a_run_that_finishes_within_the_grace_is_completed(harness: WorkerHarness) -> None:
    with running_worker(harness.settings) as worker:
        task_id = harness.send("sleep", {"seconds": 0.5, "stubborn": True})
        harness.reaches(task_id, "running")

        worker.signal(signal.SIGTERM)
        worker.ended(within=PROMPTLY)

    assert harness.deployment.row(task_id)["output"] == {"slept": 0.5}


def test_a_worker_shuts_down_promptly_although_redis_hangs(
    harness: WorkerHarness, redis: EmbeddedRedis
) -> None:
    server = listening_on(make_url(redis.url).port)
    with running_worker(harness.settings) as worker:
        task_id = harness.send("sleep", {"seconds": 300, "stubborn": True})
        harness.reaches(task_id, "running")

        server.suspend()
        try:
            worker.signal(signal.SIGTERM)
            code = worker.ended(within=PROMPTLY)
        finally:
            server.resume()

    row = harness.deployment.row(task_id)
    assert (code, row["state"], row["attempts"]) == (0, "ready", 0)


def test_the_runs_of_a_killed_worker_end_and_the_reaper_takes_them_back(
    harness: WorkerHarness,
) -> None:
    with running_worker(harness.settings) as worker:
        task_id = harness.send("sleep", {"seconds": 300})
        harness.reaches(task_id, "running")
        children = worker.children()

        worker.signal(signal.SIGKILL)
        wait_until(lambda: all(map(is_gone, children)), timeout=5, what="the children to die too")

        wait_until(lambda: reap(harness.deployment.dispatcher), timeout=6)
    assert harness.outcomes(task_id) == ["worker_lost"]


def test_a_module_that_cannot_be_imported_stops_the_start(harness: WorkerHarness) -> None:
    broken = environment(harness.settings) | {"OVERNIGHT_HANDLERS": "no.such.module"}

    answer = subprocess.run(
        worker_command(harness.settings),
        cwd=ROOT,
        env=broken,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert answer.returncode == 1
    assert "OVERNIGHT_HANDLERS: cannot import 'no.such.module'" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_worker_that_cannot_reach_redis_can_still_be_shut_down(harness: WorkerHarness) -> None:
    nowhere = environment(harness.settings) | {"OVERNIGHT_REDIS_URL": "redis://127.0.0.1:1/0"}
    with subprocess.Popen(
        worker_command(harness.settings),
        cwd=ROOT,
        env=nowhere,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            wait_until(lambda: "Cannot connect to" in process.stderr.readline())
            process.terminate()
            process.stderr.close()
            assert process.wait(PROMPTLY) == 0
        finally:
            process.kill()
    assert harness.deployment.rows("SELECT * FROM agents") == []
