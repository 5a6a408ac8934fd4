"""The printed access list is enough for every process, and for nothing else."""

import json
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote, urlsplit
from uuid import uuid4

import pytest
from redis import Redis
from redis.exceptions import RedisError

from overnight.errors import TooManyRequests
from overnight_server.api.http.rate_limit import RateLimiter
from overnight_server.cli.commands.processes import (
    beat_arguments,
    flower_arguments,
    maintenance_arguments,
)
from overnight_server.control.cancel import cancel
from overnight_server.dispatch.celery_settings import EXECUTE, agent_queue
from overnight_server.dispatch.publish import Publisher, message_id
from overnight_server.dispatch.redis_acl import API, FLOWER, SERVICE
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import show_task
from overnight_server.local.ports import free_port
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.wakeups.wake import DISPATCHERS_CHANNEL, Waker, WakeUpListener
from tests.support.command import run
from tests.support.flower import SIGN_IN, Flower
from tests.support.servers import redis_server
from tests.support.wait import wait_until
from tests.support.workers import (
    Worker,
    WorkerHarness,
    is_gone,
    running,
    running_worker,
    worker_settings,
    working_deployment,
)

PREFIX = f"acl-{uuid4().hex[:6]}:"


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[EmbeddedRedis, dict[str, str]]]:
    """A Redis of our own that knows the printed users, and the address of each."""
    with pytest.MonkeyPatch.context() as patch, redis_server() as server:
        patch.setenv("OVERNIGHT_REDIS_KEY_PREFIX", PREFIX)
        printed = json.loads(run("redis-acl", "--json").stdout)
        place = urlsplit(server.url)
        with Redis.from_url(server.url) as root:
            for line in printed["acl"][1:]:
                _, name, *rules = line.split()
                root.execute_command("ACL", "SETUSER", name, *rules)
        yield (
            server,
            {
                name: f"redis://{name}:{quote(word)}@{place.hostname}:{place.port}/0"
                for name, word in printed["passwords"].items()
            },
        )


def _refusals(server: EmbeddedRedis) -> list[object]:
    with Redis.from_url(server.url) as root:
        return [(entry["reason"], entry["object"], entry["username"]) for entry in root.acl_log()]


def test_a_whole_deployment_works_under_the_list(
    guarded: tuple[EmbeddedRedis, dict[str, str]], postgres: EmbeddedPostgres, template: str
) -> None:
    server, urls = guarded
    with working_deployment(postgres, template) as deployment:
        url = deployment.owner.engine.url.render_as_string(hide_password=False)
        settings = worker_settings(
            url,
            urls[SERVICE],
            redis_key_prefix=PREFIX,
            lease_check_interval=1,
            dispatch_tick_interval=1,
        )
        publisher = Publisher(settings)
        harness = WorkerHarness(deployment, settings, publisher, deployment.user())
        with (
            running_worker(settings) as worker,
            running(maintenance_arguments(), settings),
            running(beat_arguments(), settings),
        ):
            # Beat asks maintenance to dispatch, and that sends the message.
            task = deployment.task(harness.user, type="echo", payload={"hello": "acl"})
            wait_until(
                lambda: deployment.state(task) == "completed" or _refusals(server),
                timeout=60,
                what="the task to be run",
            )
            assert _refusals(server) == []
            row = deployment.row(task)
            assert row["output"] == {"hello": "acl"}
            wait_until(
                lambda: deployment.rows("SELECT 1 FROM sweeps WHERE name = 'reap'"),
                timeout=60,
                what="beat and maintenance to have swept",
            )
            # Remote control reaches the worker and its answer comes back.
            pinged = publisher._celery.control.ping(timeout=5)
            assert len(pinged) >= 1, worker.log_text()
        publisher.close()
    waker = Waker(urls[API], PREFIX)
    listener = WakeUpListener(urls[SERVICE], PREFIX)
    listener._receive(0.01)
    waker.wake()
    wait_until(lambda: listener._receive(0.2), what="the wake-up to be received")
    waker.close()
    listener.close()
    rates = RateLimiter(urls[API], PREFIX, per_second=0.01, burst=1)
    rates.take("ada")
    with pytest.raises(TooManyRequests):
        rates.take("ada")
    rates.close()

    assert _refusals(server) == []


def test_flower_shows_workers_and_tasks_under_the_list(
    guarded: tuple[EmbeddedRedis, dict[str, str]], postgres: EmbeddedPostgres, template: str
) -> None:
    server, urls = guarded
    with working_deployment(postgres, template) as deployment:
        url = deployment.owner.engine.url.render_as_string(hide_password=False)
        ours = {"redis_key_prefix": PREFIX, "flower_port": free_port()}
        settings = worker_settings(url, urls[SERVICE], dispatch_tick_interval=1, **ours)
        looking = worker_settings(url, urls[FLOWER], **ours)
        flower = Flower(looking.flower_port)
        harness = WorkerHarness(deployment, settings, Publisher(settings), deployment.user())
        with (
            running(flower_arguments(looking), looking, FLOWER_BASIC_AUTH=SIGN_IN) as process,
            running_worker(settings),
        ):
            wait_until(flower.is_up, what="Flower to answer", timeout=60)

            def shown() -> object:
                # Workers tell of their messages once Flower has asked them to.
                task_id = harness.send("echo", {"hello": "flower"})
                harness.reaches(task_id, "completed", timeout=30)
                return flower.get("/api/tasks").get(f"{show_task(task_id)}:1")

            seen = wait_until(
                lambda: shown() or _refusals(server),
                what=f"Flower to see a task:\n{process.log_text()[-2000:]}",
                timeout=60,
                pause=1,
            )
            workers = flower.get("/api/workers?refresh=1")
            queues = flower.status("/broker")
        harness.publisher.close()

    assert _refusals(server) == []
    assert isinstance(seen, dict)
    assert seen["state"] in {"RECEIVED", "STARTED", "SUCCESS"}
    [worker] = [told for name, told in workers.items() if name.startswith("default.")]
    # What it was asked for and answered itself, not only what it told.
    assert worker["stats"]["pool"]["max-concurrency"] == 1
    assert agent_queue("default") in [queue["name"] for queue in worker["active_queues"]]
    assert queues == 200


# Celery's commands that change a worker, or kill a run.
CHANGES: tuple[tuple[str, dict[str, object]], ...] = (
    ("shutdown", {}),
    ("pool_shrink", {"n": 1}),
    ("pool_restart", {}),
    ("autoscale", {"max": 0, "min": 0}),
    ("cancel_consumer", {"queue": agent_queue("default")}),
    ("rate_limit", {"task_name": EXECUTE, "rate_limit": "1/h"}),
    ("time_limit", {"task_name": EXECUTE, "hard": 1}),
)


FlowerAndWorker = tuple[Publisher, WorkerHarness, Worker]


@pytest.fixture
def flower_and_worker(
    guarded: tuple[EmbeddedRedis, dict[str, str]], postgres: EmbeddedPostgres, template: str
) -> Iterator[FlowerAndWorker]:
    """A running worker, and what Flower's user of Redis can send to it."""
    _, urls = guarded
    with working_deployment(postgres, template) as deployment:
        url = deployment.owner.engine.url.render_as_string(hide_password=False)
        settings = worker_settings(url, urls[SERVICE], redis_key_prefix=PREFIX)
        flower_settings = worker_settings(url, urls[FLOWER], redis_key_prefix=PREFIX)
        with (
            closing(Publisher(flower_settings)) as flower,
            closing(Publisher(settings)) as publisher,
            running_worker(settings) as worker,
        ):
            yield flower, WorkerHarness(deployment, settings, publisher, deployment.user()), worker


def test_flower_can_neither_stop_nor_change_a_worker(
    flower_and_worker: FlowerAndWorker,
) -> None:
    flower, harness, worker = flower_and_worker
    deployment = harness.deployment
    task_id = harness.send("sleep", {"seconds": 600})
    row = deployment.row(task_id)
    claim = Claim(task_id, row["epoch"], row["token"])
    [child] = worker.children()

    for command, arguments in CHANGES:
        flower._celery.control.broadcast(command, arguments=arguments)
    flower._celery.control.revoke(message_id(claim), terminate=True, signal="SIGKILL")
    flower.terminate(Claim(claim.task_id, claim.epoch, uuid4()))
    # The worker answers commands in their order.
    assert flower._celery.control.ping(timeout=5), worker.log_text()

    assert [process.pid for process in worker.children()] == [child.pid]
    assert deployment.state(task_id) == "running"

    harness.publisher.terminate(claim)
    wait_until(lambda: is_gone(child), what="the run to be killed")
    wait_until(lambda: deployment.state(task_id) != "running", what="its end")
    cancel(deployment.app, harness.user, task_id, actor="human:test")
    harness.reaches(harness.send("echo"), "completed", timeout=60)


SHOWN = ("active", "reserved", "scheduled", "revoked", "stats", "conf", "registered")


def test_no_reply_to_flower_contains_the_token_of_a_claim(
    flower_and_worker: FlowerAndWorker,
) -> None:
    """With the token, whoever reads the page of a worker could act as the run."""
    flower, harness, worker = flower_and_worker
    deployment = harness.deployment
    task_id = harness.send("sleep", {"seconds": 600})

    replies = {
        command: str(flower._celery.control.broadcast(command, reply=True, limit=1))
        for command in SHOWN
    }

    assert all(reply != "[]" for reply in replies.values()), worker.log_text()
    assert show_task(task_id) in replies["active"]
    token = str(deployment.row(task_id)["token"])
    assert not [command for command, reply in replies.items() if token in reply]
    cancel(deployment.app, harness.user, task_id, actor="human:test")


def test_nothing_else_is_let_through(guarded: tuple[EmbeddedRedis, dict[str, str]]) -> None:
    _, urls = guarded
    refused = {
        SERVICE: (
            ("FLUSHALL",),
            ("CONFIG", "GET", "*"),
            ("KEYS", "*"),
            ("EVAL", "return 1", "0"),
            ("ACL", "LIST"),
            ("SHUTDOWN",),
            ("GET", "somebody-elses"),
            ("LPUSH", "other:agents.default", "x"),
            ("SUBSCRIBE", "other:wake"),
            ("MODULE", "LIST"),
            ("MONITOR",),
        ),
        FLOWER: (
            ("LPUSH", f"{PREFIX}{agent_queue('default')}", "forged"),
            ("LPUSH", f"{PREFIX}maintenance", "forged"),
            ("DEL", f"{PREFIX}{agent_queue('default')}"),
            ("BRPOP", f"{PREFIX}{agent_queue('default')}", "1"),
            ("GET", f"{PREFIX}rate:ada"),
            ("PUBLISH", f"{PREFIX}{DISPATCHERS_CHANNEL}", "ring"),
            ("FLUSHALL",),
            ("KEYS", "*"),
        ),
        API: (
            ("LPUSH", f"{PREFIX}{agent_queue('default')}", "forged"),
            ("LLEN", f"{PREFIX}{agent_queue('default')}"),
            ("PUBLISH", f"/0.{PREFIX}celery.pidbox", "shutdown"),
            ("GET", f"{PREFIX}rate:ada"),
            ("FLUSHALL",),
            ("KEYS", "*"),
            ("INFO",),
            ("SUBSCRIBE", f"{PREFIX}idle:default"),
            ("SUBSCRIBE", f"/0.{PREFIX}celery.pidbox"),
        ),
    }
    for name, commands in refused.items():
        with Redis.from_url(urls[name]) as client:
            assert client.ping()
            for command in commands:
                with pytest.raises(RedisError, match=r"(?i)noperm|permission"):
                    client.execute_command(*command)


def test_the_list_holds_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = json.loads(run("redis-acl", "--json").stdout)
    plain = run("redis-acl")

    assert printed["acl"][0] == "user default off"
    assert not any(
        word in line for line in printed["acl"] for word in printed["passwords"].values()
    )
    assert len(plain.stdout.splitlines()) == len(printed["acl"])
    assert API in plain.stderr
