"""How long a task is held up when its worker dies, with the clocks everybody has."""

import time
from collections.abc import Callable

import pytest

from overnight_server.domain.ids import parse_task
from overnight_server.settings import Settings
from tests.support.deployment import Deployment
from tests.support.stack import CLOCKS, SERVICES, Stack
from tests.support.wait import wait_until

PROMISED_SECONDS = 45.0


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_a_dead_workers_task_runs_again_within_45_seconds(
    build: Callable[..., Stack], deployment: Deployment
) -> None:
    usual = {name: getattr(Settings(), name) for name in CLOCKS}
    stack = build(**usual).start(*SERVICES, "worker-2")
    wait_until(
        lambda: deployment.one("SELECT count(*) AS n FROM agents")["n"] == 2,
        what="two workers to join",
    )
    _, client = stack.user()
    made = [client.tasks.create(f"long {n}", type="sleep", payload={"seconds": 90}) for n in "abc"]
    tasks = [parse_task(task.id) for task in made]
    wait_until(lambda: all(deployment.state(one) == "running" for one in tasks), what="all to run")

    stack.kill("worker")
    killed = time.monotonic()
    stack.ended("worker")
    stack.start("worker")
    wait_until(lambda: _running_again(deployment, tasks), timeout=120, what="all to run again")

    assert time.monotonic() - killed <= PROMISED_SECONDS


def _running_again(deployment: Deployment, tasks: list[object]) -> bool:
    """Whether every task is held by a worker that is still there."""
    rows = deployment.rows(
        "SELECT count(*) AS n FROM attempts WHERE outcome = 'worker_lost'"
        " UNION ALL SELECT count(*) FROM tasks WHERE state = 'running'"
    )
    return rows[0]["n"] >= 1 and rows[1]["n"] == len(tasks)
