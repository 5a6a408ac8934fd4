"""The example agent as a process: killed, put to sleep, stopped; nothing is lost or doubled."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from overnight import Client
from overnight_server.domain.ids import parse_task
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import reap
from tests.support.deployment import Deployment
from tests.support.live_api import LiveApi, serve
from tests.support.wait import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "pull_agent.py"
LEASE_SECONDS = 2
REPORT = {"sections": ["one", "two"], "seconds": 0.5}
Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def served(deployment: Deployment, database_url: str) -> Iterator[LiveApi]:
    with serve(deployment, database_url) as served:
        yield served


@pytest.fixture
def start(served: LiveApi, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def one(name: str) -> "subprocess.Popen[bytes]":
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, str(EXAMPLE), name, str(LEASE_SECONDS)],
                env={
                    **os.environ,
                    "OVERNIGHT_URL": served.url,
                    "OVERNIGHT_API_KEY": served.key,
                    "PYTHONPATH": str(EXAMPLE.parents[1]),
                },
                stderr=log,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield one


def submit(served: LiveApi) -> str:
    with Client(served.url, served.key) as client:
        return client.tasks.create("a report", type="slow-report", payload=REPORT).id


def row(deployment: Deployment, task: str) -> Any:
    return deployment.row(parse_task(task))


def runs(deployment: Deployment, task: str, by: str | None = None) -> bool:
    """Whether a task runs, maybe at the agent of this name."""
    running = deployment.rows(
        "SELECT g.name FROM tasks t JOIN agents g ON g.id = t.claimed_by"
        " WHERE t.id = :id AND t.state = 'running'",
        id=parse_task(task),
    )
    return bool(running) and (by is None or running[0]["name"] == by)


def done(deployment: Deployment, task: str) -> bool:
    """Sweep as maintenance does, and say whether the task is done."""
    reap(deployment.dispatcher)
    promote(deployment.dispatcher)
    return str(row(deployment, task)["state"]) == "completed"


def test_another_agent_completes_the_task_of_a_killed_one(
    deployment: Deployment, served: LiveApi, start: Start
) -> None:
    task = submit(served)
    first = start("first")
    wait_until(lambda: runs(deployment, task), what="the first run")

    first.kill()
    start("second")

    wait_until(lambda: done(deployment, task), what="the second run")
    attempts = deployment.rows("SELECT outcome FROM attempts ORDER BY epoch")
    assert [one["outcome"] for one in attempts] == ["worker_lost", "completed"]
    assert row(deployment, task)["output"]["run"] == f"{task}:2"
    assert len(deployment.rows("SELECT * FROM artifacts")) == 1


def test_the_result_of_an_overtaken_agent_is_discarded(
    deployment: Deployment, served: LiveApi, start: Start, tmp_path: Path
) -> None:
    task = submit(served)
    sleeper = start("sleeper")
    wait_until(lambda: runs(deployment, task), what="the first run")

    sleeper.send_signal(signal.SIGSTOP)
    other = start("other")
    wait_until(lambda: done(deployment, task), what="the other's run")
    before = row(deployment, task)
    sleeper.send_signal(signal.SIGCONT)

    log = tmp_path / "sleeper.log"
    wait_until(lambda: "is held by another run" in log.read_text(), what="the sleeper to notice")
    assert row(deployment, task) == before
    assert before["output"]["run"] == f"{task}:2"
    other.terminate()
    assert other.wait(20) == 0
    again = submit(served)
    wait_until(lambda: done(deployment, again), what="the sleeper to work on")


def test_an_agent_that_is_told_to_stop_hands_its_task_back(
    deployment: Deployment, served: LiveApi, start: Start
) -> None:
    task = submit(served)
    agent = start("polite")
    wait_until(lambda: runs(deployment, task), what="the run")

    agent.terminate()

    assert agent.wait(20) == 0
    task_row = row(deployment, task)
    assert (task_row["state"], task_row["attempts"]) == ("ready", 0)
    assert deployment.one("SELECT status FROM agents")["status"] == "offline"
