"""`overnight drill broker`: wipe Redis on purpose and check that no task is lost."""

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


def test_a_drill_loses_messages_in_every_wave_and_no_task(
    build: Build, deployment: Deployment, broker: EmbeddedRedis
) -> None:
    # The tasks of one wave are still claimed when the next wave starts.
    stack = build(redis_url=broker.url, claim_ttl=10)
    stack.start("dispatcher", "maintenance", "beat", "worker")
    wait_until(lambda: bool(deployment.rows("SELECT 1 FROM agents WHERE status = 'active'")))

    running = drill(stack, "--tasks", "30", "--wipes", "3", "--yes", "--json")
    output, waves = running.communicate(timeout=100)

    report = json.loads(output)
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


def test_a_drill_claims_half_of_its_own_tasks_and_no_others(
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


def test_a_drill_takes_at_most_half_of_the_slots(
    build: Build, deployment: Deployment, broker: EmbeddedRedis
) -> None:
    stack = build(redis_url=broker.url, claim_ttl=2, slots_max=4)

    running = drill(stack, "--tasks", "20", "--wipes", "1", "--yes")
    assert running.stderr is not None
    wiped = running.stderr.readline()
    running.kill()
    running.communicate()

    assert "2 messages of the drill" in wiped


def test_a_drill_that_wiped_no_message_is_inconclusive(
    build: Build, deployment: Deployment, broker: EmbeddedRedis
) -> None:
    stack = build(redis_url=broker.url, claim_ttl=2)
    stack.start("dispatcher", "maintenance", "beat", "worker")
    pause(deployment.app, EVERYTHING, actor="human:ada")

    running = drill(stack, "--tasks", "2", "--wipes", "1", "--yes", "--json")
    assert running.stderr is not None
    wiped = running.stderr.readline()
    resume(deployment.app, EVERYTHING, actor="human:ada")
    output, advice = running.communicate(timeout=100)

    report = json.loads(output)
    assert "0 messages of the drill" in wiped
    assert running.returncode == Code.INCONCLUSIVE
    assert report["result"] == "inconclusive"
    assert report["lost"] == report["doubled"] == report["unfinished"] == 0
    assert "so the drill proves nothing" in advice


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
def test_the_outcome_of_a_drill_follows_from_its_counts(
    counted: dict[str, Any], outcome: str
) -> None:
    well = {"wipes": [BrokerWipe(9, 2)], "lost": 0, "doubled": 0, "unfinished": 0, "resent": 4}
    done = DrillReport("drill-1", 8, runs=8, longest_seconds=1, seconds=1, **{**well, **counted})

    assert done.outcome == outcome


def test_a_drill_with_unfinished_tasks_fails(
    build: Build, deployment: Deployment, broker: EmbeddedRedis
) -> None:
    stack = build(redis_url=broker.url)

    running = drill(stack, "--tasks", "2", "--wipes", "1", "--yes", "--json")
    assert running.stderr is not None
    running.stderr.readline()
    for task in deployment.rows("SELECT id, user_id FROM tasks"):
        cancel(deployment.app, task["user_id"], task["id"], actor="human:ada")
    output, _ = running.communicate(timeout=30)

    assert running.returncode == Code.NOT_COMPLETED
    assert json.loads(output)["unfinished"] == 2


def test_a_wipe_keeps_keys_without_the_prefix(build: Build, broker: EmbeddedRedis) -> None:
    settings = build(redis_url=broker.url).settings
    with fail_fast_client(broker.url) as client:
        client.set("somebody-elses", "1")
        client.set(f"{settings.redis_key_prefix}ours", "1")

        assert others_keys(settings) == 1
        assert wipe(settings) == (1, 0)

        assert client.keys() == [b"somebody-elses"]


def test_a_drill_without_a_terminal_needs_yes(
    build: Build, deployment: Deployment, broker: EmbeddedRedis
) -> None:
    refused = drill(build(redis_url=broker.url))

    output, message = refused.communicate("y\n", timeout=30)

    assert refused.returncode == Code.USAGE
    assert output == ""
    assert "all keys" in message
    assert "Confirmation needs a terminal; pass --yes." in message
    assert deployment.rows("SELECT 1 FROM tasks") == []


def test_a_drill_without_a_broker_names_the_remedy(build: Build, broker: EmbeddedRedis) -> None:
    stack = build(redis_url=broker.url)
    broker.stop()
    failed = drill(stack, "--yes")

    _, message = failed.communicate(timeout=30)

    assert failed.returncode == Code.FAILED
    assert "Redis does not respond" in message
    assert "overnight up" in message
