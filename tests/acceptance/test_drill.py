"""Losing the broker of a deployment on purpose."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from overnight_server.cli.terminal.failures import Code
from overnight_server.control.cancel import cancel
from overnight_server.control.pauses import EVERYTHING, pause, resume
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.maintenance.drill import BrokerWipe, DrillReport, others_keys, wipe
from overnight_server.wakeups.redis_client import fail_fast_client
from tests.support.deployment import Deployment
from tests.support.servers import redis_server
from tests.support.stack import Stack
from tests.support.wait import wait_until
from tests.support.workers import ROOT, environment

Build = Callable[..., Stack]
DRILL = (sys.executable, "-m", "overnight_server.cli.main", "drill", "broker")


@pytest.fixture
def broker() -> Iterator[EmbeddedRedis]:
    with redis_server() as server:
        yield server


def drill(stack: Stack, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*DRILL, *arguments],
        env=environment(stack.settings) | {"PYTHONPATH": str(ROOT)},
        cwd=stack.logs,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_every_wave_of_a_drill_loses_messages_and_no_task_though_workers_are_free(
    build: Build, deployment: Deployment, broker: EmbeddedRedis
) -> None:
    # What one wave lost is still claimed when the next ones come.
    stack = build(redis_url=broker.url, claim_ttl=10)
    stack.start("dispatcher", "maintenance", "beat", "worker")
    wait_until(lambda: bool(deployment.rows("SELECT 1 FROM agents WHERE status = 'active'")))

    running = drill(stack, "--tasks", "30", "--wipes", "3", "--yes", "--json")
    said, waves = running.communicate(timeout=100)

    report = json.loads(said)
    assert running.returncode == 0, waves
    assert "wave 3: 10 tasks" in waves
    assert report["result"] == "passed"
    assert report["passed"]
    assert [one["messages"] for one in report["wipes"]] == [5, 5, 5]
    assert report["resent"] >= 15
    assert report["runs"] == 30
    assert report["lost"] == report["doubled"] == report["unfinished"] == 0
    states = deployment.rows("SELECT state, count(*) AS n FROM tasks GROUP BY state")
    assert states == [{"state": "completed", "n": 30}]
    with fail_fast_client(broker.url) as client:
        assert client.keys("*broker-drill*") == []


def test_a_drill_catches_half_of_its_own_tasks_and_nobody_elses(
    build: Build, deployment: Deployment, broker: EmbeddedRedis
) -> None:
    stack = build(redis_url=broker.url, claim_ttl=2)
    others = [
        deployment.task(deployment.user()),
        deployment.task(deployment.user(), type="nobody-knows-it"),
    ]

    running = drill(stack, "--tasks", "6", "--wipes", "1", "--yes", "--json")
    assert running.stderr is not None
    wiped = running.stderr.readline()

    caught = deployment.rows("SELECT task_id FROM attempts")
    assert "3 messages of the drill" in wiped
    assert len(caught) == 3
    assert not {one["task_id"] for one in caught} & set(others)
    assert deployment.rows("SELECT 1 FROM agents") == []
    assert deployment.rows("SELECT 1 FROM tasks WHERE required_capabilities <> '{}'") == []
    stack.start("dispatcher", "maintenance", "beat", "worker")
    running.communicate(timeout=100)
    assert running.returncode == 0


def test_a_drill_leaves_half_of_the_slots_of_a_deployment_with_few_to_others(
    build: Build, deployment: Deployment, broker: EmbeddedRedis
) -> None:
    stack = build(redis_url=broker.url, claim_ttl=2, slots_max=4)

    running = drill(stack, "--tasks", "20", "--wipes", "1", "--yes")
    assert running.stderr is not None
    wiped = running.stderr.readline()
    running.kill()
    running.communicate()

    assert "2 messages of the drill" in wiped


def test_a_drill_in_which_nothing_was_on_its_way_is_inconclusive(
    build: Build, deployment: Deployment, broker: EmbeddedRedis
) -> None:
    stack = build(redis_url=broker.url, claim_ttl=2)
    stack.start("dispatcher", "maintenance", "beat", "worker")
    pause(deployment.app, EVERYTHING, actor="human:ada")

    running = drill(stack, "--tasks", "2", "--wipes", "1", "--yes", "--json")
    assert running.stderr is not None
    wiped = running.stderr.readline()
    resume(deployment.app, EVERYTHING, actor="human:ada")
    said, advice = running.communicate(timeout=100)

    report = json.loads(said)
    assert "0 messages of the drill" in wiped
    assert running.returncode == Code.INCONCLUSIVE
    assert report["result"] == "inconclusive"
    assert report["lost"] == report["doubled"] == report["unfinished"] == 0
    assert "so nothing was shown" in advice


@pytest.mark.parametrize(
    ("counted", "outcome"),
    [
        ({}, "passed"),
        ({"wipes": [BrokerWipe(9, 1), BrokerWipe(9, 0)]}, "passed"),
        ({"wipes": [BrokerWipe(9, 0), BrokerWipe(9, 0)]}, "inconclusive"),
        ({"resent": 0}, "inconclusive"),
        ({"lost": 1}, "failed"),
        ({"doubled": 1}, "failed"),
        ({"unfinished": 1, "resent": 0}, "failed"),
    ],
    ids=str,
)
def test_a_drill_is_judged_by_what_was_lost_and_what_ran(
    counted: dict[str, Any], outcome: str
) -> None:
    well = {"wipes": [BrokerWipe(9, 2)], "lost": 0, "doubled": 0, "unfinished": 0, "resent": 4}
    done = DrillReport("drill-1", 8, runs=8, longest_seconds=1, seconds=1, **{**well, **counted})

    assert done.outcome == outcome


def test_a_drill_that_left_tasks_behind_ends_badly(
    build: Build, deployment: Deployment, broker: EmbeddedRedis
) -> None:
    stack = build(redis_url=broker.url)

    running = drill(stack, "--tasks", "2", "--wipes", "1", "--yes", "--json")
    assert running.stderr is not None
    running.stderr.readline()
    for task in deployment.rows("SELECT id, user_id FROM tasks"):
        cancel(deployment.app, task["user_id"], task["id"], actor="human:ada")
    said, _ = running.communicate(timeout=30)

    assert running.returncode == Code.ENDED_BADLY
    assert json.loads(said)["unfinished"] == 2


def test_keys_of_others_are_spared(build: Build, broker: EmbeddedRedis) -> None:
    settings = build(redis_url=broker.url).settings
    with fail_fast_client(broker.url) as client:
        client.set("somebody-elses", "1")
        client.set(f"{settings.redis_key_prefix}ours", "1")

        assert others_keys(settings) == 1
        assert wipe(settings) == (1, 0)

        assert client.keys() == [b"somebody-elses"]


def test_a_drill_asks_first(build: Build, deployment: Deployment, broker: EmbeddedRedis) -> None:
    asking = drill(build(redis_url=broker.url))

    said, asked = asking.communicate("n\n", timeout=30)

    assert asking.returncode == Code.WAITED_IN_VAIN
    assert said == ""
    assert "everything in it" in asked
    assert "Go on?" in asked
    assert deployment.rows("SELECT 1 FROM tasks") == []


def test_a_drill_without_a_broker_says_so(build: Build, broker: EmbeddedRedis) -> None:
    stack = build(redis_url=broker.url)
    broker.stop()
    asking = drill(stack)

    _, said = asking.communicate("y\n", timeout=30)

    assert asking.returncode == Code.FAILED
    assert "Redis does not answer" in said
    assert "overnight up" in said
