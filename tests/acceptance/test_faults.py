"""Real processes on real servers: which faults a deployment survives.

The tests with the mark `proof` repeat with a whole stack what smaller tests of the build also show:
the chaos run (crashes, repeated messages, two dispatchers), the broker drill (a wiped Redis), and
the tests of one worker (timeouts, cancels, hand-backs). `make proof` runs them.
"""

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from overnight import Client
from overnight_server.dispatch.publish import Publisher
from overnight_server.domain.ids import parse_task
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.wakeups.redis_client import fail_fast_client
from tests.support.deployment import Deployment
from tests.support.servers import redis_server
from tests.support.stack import SERVICES, Stack
from tests.support.wait import wait_until

Build = Callable[..., Stack]


def test_a_task_goes_all_the_way_through_real_processes(build: Build) -> None:
    stack = build().start(*SERVICES).ready()
    _, client = stack.user()

    made = client.tasks.create("say hello", type="echo", payload={"hello": "world"})
    done = client.tasks.wait(made.id, timeout=30, poll=0.1)

    assert (done.state, done.output, done.attempts) == ("completed", {"hello": "world"}, 1)


def test_a_task_outlives_the_worker_that_was_killed(build: Build, deployment: Deployment) -> None:
    stack = build().start(*SERVICES, "worker-2").ready()
    _, client = stack.user()
    made = client.tasks.create("long", type="sleep", payload={"seconds": 4})
    task_id = parse_task(made.id)
    wait_until(lambda: deployment.state(task_id) == "running", what="the task to run")

    holder = deployment.row(task_id)["claimed_by"]
    victim = next(name for name in ("worker", "worker-2") if _is(stack, name, holder))
    stack.kill(victim)
    killed = time.monotonic()
    wait_until(lambda: deployment.row(task_id)["epoch"] == 2, what="the second claim")
    back_after = time.monotonic() - killed
    done = client.tasks.wait(made.id, timeout=30, poll=0.1)

    clocks = stack.settings
    assert done.state == "completed"
    # lease, one reaper period, and a moment for a busy machine
    assert back_after < clocks.lease_seconds + clocks.lease_check_interval + 3
    outcomes = deployment.rows("SELECT outcome, spent FROM attempts ORDER BY epoch")
    assert [row["outcome"] for row in outcomes] == ["worker_lost", "completed"]
    ledger = deployment.rows("SELECT kind FROM usage_ledger WHERE epoch = 1 ORDER BY kind")
    assert [row["kind"] for row in ledger] == ["refund", "usage"]


@pytest.mark.proof
def test_a_wiped_broker_loses_nothing_and_doubles_nothing(
    build: Build, deployment: Deployment
) -> None:
    with redis_server() as own:
        stack = build(redis_url=own.url, worker_liveness=60, dispatch_tick_interval=300)
        stack.start("api", "maintenance", "beat", "worker").ready()
        user, client = stack.user()
        # A worker with room for 200 that never fetches: 200 messages stand in Redis at once.
        deployment.run("UPDATE users SET max_concurrent_agents = 300 WHERE id = :id", id=user)
        deployment.agent(slots=200, agent_id="greedy")
        for number in range(200):
            client.tasks.create(f"task {number}", type="echo")
        stack.start("dispatcher")
        wait_until(
            lambda: deployment.one("SELECT sum(active) AS n FROM lanes")["n"] >= 100,
            what="100 claims in flight",
            pause=0.01,
        )

        with fail_fast_client(own.url) as redis:
            redis.flushall()
        stack.drained(timeout=90)

    _all_completed_once(deployment, 200)


@pytest.mark.proof
def test_messages_delivered_twice_and_shuffled_start_once(
    build: Build, deployment: Deployment
) -> None:
    stack = build().start("worker", "maintenance", "beat", "api").ready()
    _, client = stack.user()
    deployment.agent(slots=60, agent_id="greedy")
    for number in range(40):
        client.tasks.create(f"task {number}", type="echo")

    claims = list(deployment.claim(limit=40).claims)
    messages = claims * 2
    random.Random(7).shuffle(messages)
    publisher = Publisher(stack.settings)
    for message in messages:
        assert publisher.send(stack.settings.pool, [message]) == []
    publisher.close()
    stack.drained()

    _all_completed_once(deployment, 40)
    assert deployment.one("SELECT count(*) AS n FROM attempts")["n"] == 40
    assert deployment.one("SELECT count(*) AS n FROM stale_results")["n"] == 0


@pytest.mark.parametrize("fault", [pytest.param("stopped", marks=pytest.mark.proof), "hung"])
def test_a_dead_or_hung_broker_never_slows_a_submit(
    build: Build, deployment: Deployment, fault: str
) -> None:
    with redis_server() as own:
        stack = build(redis_url=own.url).start(*SERVICES).ready()
        _, client = stack.user()
        _break(own, fault)

        took = [_timed(client, number) for number in range(10)]
        _mend(own, fault)
        stack.drained(timeout=90)

        assert max(took) < 1.0
        _all_completed_once(deployment, 10)


@pytest.mark.proof
def test_everything_resumes_after_postgres_crashed(
    build: Build, deployment: Deployment, postgres: EmbeddedPostgres
) -> None:
    stack = build().start(*SERVICES).ready()
    _, client = stack.user()
    for number in range(20):
        client.tasks.create(f"task {number}", type="sleep", payload={"seconds": 0.3})
    wait_until(
        lambda: (
            deployment.one("SELECT count(*) AS n FROM tasks WHERE state = 'completed'")["n"] >= 2
        ),
        what="some work to be done",
    )

    deployment.owner.engine.dispose()
    postgres.stop(immediate=True)
    postgres.start()
    stack.drained(timeout=90)

    states = deployment.rows("SELECT state, count(*) AS n FROM tasks GROUP BY state")
    assert states == [{"state": "completed", "n": 20}]


def test_an_outage_of_postgres_longer_than_a_lease_costs_no_attempt(
    build: Build, deployment: Deployment, postgres: EmbeddedPostgres
) -> None:
    stack = build().start(*SERVICES).ready()
    _, client = stack.user()
    made = client.tasks.create("long", type="sleep", payload={"seconds": 15}, max_attempts=1)
    task_id = parse_task(made.id)
    wait_until(lambda: deployment.state(task_id) == "running", what="the task to run")
    # Without a first pass the reaper would not notice that it made none for a while.
    finished = "SELECT count(*) AS n FROM sweeps WHERE name = 'reap' AND finished_at IS NOT NULL"
    wait_until(lambda: deployment.one(finished)["n"], what="a pass of the reaper")

    deployment.owner.engine.dispose()
    postgres.stop(immediate=True)
    try:
        wait_until(lambda: "run_killed" in stack.log_text("worker"), what="the run to end itself")
    finally:
        postgres.start()  # other tests use it too
    stack.drained(timeout=90)

    outcomes = deployment.rows("SELECT outcome, spent FROM attempts ORDER BY epoch")
    assert [row["outcome"] for row in outcomes] == ["interrupted", "completed"]
    assert deployment.row(task_id)["attempts"] == 1
    billed = deployment.one("SELECT sum(seconds) AS n FROM usage_ledger WHERE epoch = 1")
    assert billed["n"] == 0, "what the outage interrupted is refunded"


@pytest.mark.proof
def test_a_claim_that_is_never_started_comes_back(build: Build, deployment: Deployment) -> None:
    stack = build(claim_ttl=1).start("maintenance", "beat", "api")
    stack.ready()
    _, client = stack.user()
    deployment.agent(slots=1, agent_id="greedy")
    made = client.tasks.create("never fetched", type="echo")
    task_id = parse_task(made.id)
    [claimed] = deployment.claim().claims
    deployment.run(
        "UPDATE tasks SET expires_at = clock() + interval '1 second' WHERE id = :id", id=task_id
    )

    wait_until(lambda: deployment.state(task_id) == "ready", timeout=15, what="the claim to end")

    row = deployment.row(task_id)
    assert (row["attempts"], row["epoch"]) == (0, claimed.claim.epoch)
    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == "expired"


@pytest.mark.proof
@pytest.mark.parametrize("payload", [{}, {"gil": True}], ids=["loop", "holds the GIL"])
def test_an_endless_run_dies_at_its_timeout_and_frees_its_slot(
    build: Build, deployment: Deployment, payload: dict[str, object]
) -> None:
    stack = build(concurrency=1).start(*SERVICES).ready()
    _, client = stack.user()

    endless = client.tasks.create(
        "endless", type="spin", payload=payload, timeout_seconds=1, max_attempts=1
    )
    after = client.tasks.create("after it", type="echo")
    client.tasks.wait(after.id, timeout=40, poll=0.2)
    dead = client.tasks.wait(endless.id, timeout=5, poll=0.2, check=False)

    assert (dead.state, dead.failure_reason) == ("dead_lettered", "timeout")


@pytest.mark.proof
@pytest.mark.parametrize("payload", [{}, {"gil": True}], ids=["loop", "holds the GIL"])
def test_an_endless_run_dies_when_cancelled(
    build: Build, deployment: Deployment, payload: dict[str, object]
) -> None:
    stack = build(concurrency=1).start(*SERVICES).ready()
    _, client = stack.user()
    endless = client.tasks.create("endless", type="spin", payload=payload)
    wait_until(lambda: deployment.state(parse_task(endless.id)) == "running", what="it to run")

    client.tasks.cancel(endless.id)
    after = client.tasks.create("after it", type="echo")
    client.tasks.wait(after.id, timeout=40, poll=0.2)
    dead = client.tasks.wait(endless.id, timeout=5, poll=0.2, check=False)

    assert dead.state == "cancelled"
    assert deployment.one("SELECT sum(active) AS n FROM lanes")["n"] == 0


@pytest.mark.proof
def test_two_beats_and_two_dispatchers_do_no_harm(build: Build, deployment: Deployment) -> None:
    stack = build().start(*SERVICES, "beat-2", "dispatcher-2").ready()
    _, client = stack.user()

    for number in range(30):
        client.tasks.create(f"task {number}", type="flaky", payload={"failures": number % 2})
    stack.drained(timeout=60)

    _all_completed_once(deployment, 30)


def _is(stack: Stack, name: str, holder: str) -> bool:
    return holder.split(":")[1] == str(stack.processes[name].pid)


def _break(server: EmbeddedRedis, fault: str) -> None:
    if fault == "stopped":
        server.stop(immediate=True)
    else:
        os.kill(server.pid, signal.SIGSTOP)


def _mend(server: EmbeddedRedis, fault: str) -> None:
    if fault == "stopped":
        server.start()
    else:
        os.kill(server.pid, signal.SIGCONT)


def _timed(client: Client, number: int) -> float:
    began = time.monotonic()
    client.tasks.create(f"task {number}", type="echo")
    return time.monotonic() - began


def _all_completed_once(deployment: Deployment, count: int) -> None:
    states = deployment.rows("SELECT state, count(*) AS n FROM tasks GROUP BY state")
    accepted = deployment.one("SELECT count(*) AS n FROM attempts WHERE outcome = 'completed'")
    assert states == [{"state": "completed", "n": count}]
    assert accepted["n"] == count
    assert (
        deployment.one("SELECT sum(active + waiting + reserved_seconds) AS n FROM lanes")["n"] == 0
    )
