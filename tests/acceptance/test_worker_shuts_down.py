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
from tests.support.waiting import wait_until
from tests.support.workers import (
    ROOT,
    Shift,
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
def shift(database_url: str, redis: EmbeddedRedis, deployment: Deployment) -> Iterator[Shift]:
    settings = worker_settings(database_url, redis.url, concurrency=2)
    publisher = Publisher(settings)
    yield Shift(deployment, settings, publisher, deployment.user())
    publisher.close()


@pytest.mark.parametrize(
    "signals", [["TERM"], ["TERM", "TERM"], ["INT", "INT"], ["QUIT"]], ids="-".join
)
def test_a_worker_that_shuts_down_gives_its_runs_back(shift: Shift, signals: list[str]) -> None:
    with running_worker(shift.settings) as worker:
        willing = shift.send("sleep", {"seconds": 300})
        stubborn = shift.send("sleep", {"seconds": 300, "stubborn": True})
        for task_id in (willing, stubborn):
            shift.reaches(task_id, "running")

        for name in signals:
            worker.signal(signal.Signals[f"SIG{name}"])
        code = worker.ended(within=PROMPTLY)

    rows = [shift.deployment.row(task_id) for task_id in (willing, stubborn)]
    assert code == 0
    assert [(row["state"], row["attempts"], row["epoch"]) for row in rows] == [("ready", 0, 1)] * 2
    assert shift.outcomes(stubborn) == ["interrupted"]
    assert shift.deployment.one("SELECT sum(seconds) AS billed FROM usage_ledger")["billed"] == 0
    assert [agent["status"] for agent in shift.deployment.rows("SELECT status FROM agents")] == [
        "offline"
    ]


@pytest.mark.parametrize("kind", ["sleep", "spin"])
def test_a_run_costs_nothing_although_its_shutdown_could_not_be_recorded(
    shift: Shift, kind: str
) -> None:
    how = {"seconds": 300, "stubborn": True, "gil": True}
    with running_worker(shift.settings) as worker:
        runs = [shift.send(kind, how) for _ in range(2)]
        children = worker.children()

        worker.signal(signal.SIGTERM)
        with lane_held_for_long(str(shift.settings.database_url), shift.user):
            wait_until(lambda: all(map(is_gone, children)), what="the runs to be ended by force")
        worker.ended(within=PROMPTLY)

    rows = [shift.deployment.row(task_id) for task_id in runs]
    assert [(row["state"], row["attempts"]) for row in rows] == [("ready", 0)] * 2
    assert [shift.outcomes(task_id) for task_id in runs] == [["interrupted"]] * 2
    assert shift.deployment.one("SELECT sum(seconds) AS billed FROM usage_ledger")["billed"] == 0


def test_a_signal_to_the_whole_process_group_loses_nothing(shift: Shift) -> None:
    with running_worker(shift.settings) as worker:
        task_id = shift.send("sleep", {"seconds": 300, "stubborn": True})
        shift.reaches(task_id, "running")

        os.killpg(worker.process.pid, signal.SIGTERM)
        code = worker.ended(within=PROMPTLY)

    row = shift.deployment.row(task_id)
    assert (code, row["state"], row["attempts"]) == (0, "ready", 0)


def test_a_run_that_finishes_within_the_grace_is_completed(shift: Shift) -> None:
    with running_worker(shift.settings) as worker:
        task_id = shift.send("sleep", {"seconds": 0.5, "stubborn": True})
        shift.reaches(task_id, "running")

        worker.signal(signal.SIGTERM)
        worker.ended(within=PROMPTLY)

    assert shift.deployment.row(task_id)["output"] == {"slept": 0.5}


def test_a_worker_shuts_down_promptly_although_redis_hangs(
    shift: Shift, redis: EmbeddedRedis
) -> None:
    server = listening_on(make_url(redis.url).port)
    with running_worker(shift.settings) as worker:
        task_id = shift.send("sleep", {"seconds": 300, "stubborn": True})
        shift.reaches(task_id, "running")

        server.suspend()
        try:
            worker.signal(signal.SIGTERM)
            code = worker.ended(within=PROMPTLY)
        finally:
            server.resume()

    row = shift.deployment.row(task_id)
    assert (code, row["state"], row["attempts"]) == (0, "ready", 0)


def test_the_runs_of_a_killed_worker_end_and_the_reaper_takes_them_back(shift: Shift) -> None:
    with running_worker(shift.settings) as worker:
        task_id = shift.send("sleep", {"seconds": 300})
        shift.reaches(task_id, "running")
        children = worker.children()

        worker.signal(signal.SIGKILL)
        wait_until(lambda: all(map(is_gone, children)), timeout=5, what="the children to die too")

        wait_until(lambda: reap(shift.deployment.dispatcher), timeout=6)
    assert shift.outcomes(task_id) == ["worker_lost"]


def test_a_module_that_cannot_be_imported_stops_the_start(shift: Shift) -> None:
    broken = environment(shift.settings) | {"OVERNIGHT_HANDLERS": "no.such.module"}

    answer = subprocess.run(
        worker_command(shift.settings),
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


def test_a_worker_that_cannot_reach_redis_can_still_be_shut_down(shift: Shift) -> None:
    nowhere = environment(shift.settings) | {"OVERNIGHT_REDIS_URL": "redis://127.0.0.1:1/0"}
    with subprocess.Popen(
        worker_command(shift.settings),
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
    assert shift.deployment.rows("SELECT * FROM agents") == []
