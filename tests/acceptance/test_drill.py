"""Losing the broker of a deployment on purpose."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from app.events.patience import impatient
from app.local.redis import EmbeddedRedis
from tests.support.house import House
from tests.support.servers import redis_server
from tests.support.stack import Stack
from tests.support.workers import ROOT, environment

Build = Callable[..., Stack]
DRILL = (sys.executable, "-m", "app.cli.main", "drill", "broker")


@pytest.fixture
def broker() -> Iterator[EmbeddedRedis]:
    with redis_server() as server:
        yield server


def drill(stack: Stack, *arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DRILL, *arguments],
        env=environment(stack.settings) | {"PYTHONPATH": str(ROOT)},
        cwd=stack.logs,
        input=answer,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_drill_loses_the_broker_and_no_task(
    build: Build, house: House, broker: EmbeddedRedis
) -> None:
    stack = build(redis_url=broker.url)
    stack.start("dispatcher", "maintenance", "beat", "worker").ready()

    done = drill(stack, "--tasks", "60", "--wipes", "3", "--yes", "--json")

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["passed"]
    assert report["submitted"] == 60
    assert report["lost"] == report["doubled"] == report["unfinished"] == 0
    assert len(report["wipes"]) == 3
    states = house.rows("SELECT state, count(*) AS n FROM tasks GROUP BY state")
    assert states == [{"state": "completed", "n": 60}]


def test_a_claim_whose_message_was_wiped_is_sent_anew(
    build: Build, house: House, broker: EmbeddedRedis
) -> None:
    # A worker with room for all that never fetches: every message is in Redis when it is wiped.
    stack = build(redis_url=broker.url, worker_liveness=60, claim_ttl=2)
    house.agent(slots=50, agent_id="greedy")
    stack.start("dispatcher", "maintenance", "beat")

    running = subprocess.Popen(
        [*DRILL, "--tasks", "20", "--wipes", "1", "--yes", "--json"],
        env=environment(stack.settings) | {"PYTHONPATH": str(ROOT)},
        cwd=stack.logs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    wiped = running.stderr.readline()
    stack.start("worker")
    said, _ = running.communicate(timeout=100)

    report = json.loads(said)
    assert "wave 1: 20 tasks" in wiped
    assert report["passed"]
    assert report["wipes"][0]["claims_on_the_way"] > 0
    assert report["resent"] >= report["wipes"][0]["claims_on_the_way"]


def test_keys_of_others_are_spared(build: Build, broker: EmbeddedRedis) -> None:
    stack = build(redis_url=broker.url)
    stack.start("dispatcher", "maintenance", "beat", "worker").ready()
    with impatient(broker.url) as client:
        client.set("somebody-elses", "1")
        # As if the house had left a key behind.
        client.set(f"{stack.settings.redis_key_prefix}mine", "1")

        done = drill(stack, "--tasks", "5", "--wipes", "1", answer="y\n")

        assert done.returncode == 0, done.stderr
        assert "for 1 others are there" in done.stderr
        assert client.get("somebody-elses") == b"1"
        assert client.get(f"{stack.settings.redis_key_prefix}mine") is None


def test_a_drill_asks_first(build: Build, house: House, broker: EmbeddedRedis) -> None:
    stack = build(redis_url=broker.url)

    done = drill(stack, answer="n\n")

    assert done.returncode == 3
    assert "everything in it" in done.stderr
    assert house.rows("SELECT 1 FROM tasks") == []


def test_a_drill_without_a_broker_says_so(build: Build, broker: EmbeddedRedis) -> None:
    stack = build(redis_url=broker.url)
    broker.stop()

    done = drill(stack, answer="y\n")

    assert done.returncode == 1
    assert "Redis does not answer" in done.stderr
