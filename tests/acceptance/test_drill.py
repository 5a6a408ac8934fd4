"""Losing the broker of a deployment on purpose."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from app.events.patience import impatient
from app.local.redis import EmbeddedRedis
from app.maintenance.drill import others_keys, wipe
from tests.support.house import House
from tests.support.servers import redis_server
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from tests.support.workers import ROOT, environment

Build = Callable[..., Stack]
DRILL = (sys.executable, "-m", "app.cli.main", "drill", "broker")


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


def _given_up(house: House) -> int:
    return int(house.one("SELECT count(*) AS n FROM attempts WHERE outcome = 'expired'")["n"])


def test_a_drill_loses_every_message_and_no_task(
    build: Build, house: House, broker: EmbeddedRedis
) -> None:
    # A worker with room for all that never fetches: every message is in Redis when it is wiped.
    stack = build(redis_url=broker.url, worker_liveness=60, claim_ttl=2)
    house.agent(slots=50, agent_id="greedy")
    stack.start("dispatcher", "maintenance", "beat")

    running = drill(stack, "--tasks", "20", "--wipes", "1", "--yes", "--json")
    assert running.stderr is not None
    wiped = running.stderr.readline()
    # A message published just behind the wipe would reach a worker that came early: so it comes
    # only when every first claim has been given up.
    wait_until(lambda: _given_up(house) >= 20)
    stack.start("worker")
    said, _ = running.communicate(timeout=100)

    report = json.loads(said)
    caught = report["wipes"][0]["claims_on_the_way"]
    assert running.returncode == 0
    assert "wave 1: 20 tasks" in wiped
    assert caught > 0
    assert report["passed"]
    assert report["resent"] >= caught
    assert report["lost"] == report["doubled"] == report["unfinished"] == 0
    states = house.rows("SELECT state, count(*) AS n FROM tasks GROUP BY state")
    assert states == [{"state": "completed", "n": 20}]


def test_keys_of_others_are_spared(build: Build, broker: EmbeddedRedis) -> None:
    settings = build(redis_url=broker.url).settings
    with impatient(broker.url) as client:
        client.set("somebody-elses", "1")
        client.set(f"{settings.redis_key_prefix}ours", "1")

        assert others_keys(settings) == 1
        assert wipe(settings) == 1

        assert client.keys() == [b"somebody-elses"]


def test_a_drill_asks_first(build: Build, house: House, broker: EmbeddedRedis) -> None:
    asking = drill(build(redis_url=broker.url))

    _, asked = asking.communicate("n\n", timeout=30)

    assert asking.returncode == 3
    assert "everything in it" in asked
    assert "Go on?" in asked
    assert house.rows("SELECT 1 FROM tasks") == []


def test_a_drill_without_a_broker_says_so(build: Build, broker: EmbeddedRedis) -> None:
    stack = build(redis_url=broker.url)
    broker.stop()
    asking = drill(stack)

    _, said = asking.communicate("y\n", timeout=30)

    assert asking.returncode == 1
    assert "Redis does not answer" in said
