"""A worker that starts while Redis is full waits, and goes on when there is room."""

import signal

import pytest
from redis import Redis

from overnight_server.cli.commands.processes import maintenance_arguments, worker_arguments
from overnight_server.local.postgres import EmbeddedPostgres
from tests.support.servers import redis_server
from tests.support.wait import wait_until
from tests.support.workers import running, shared_harness


@pytest.mark.parametrize("process", ["worker", "maintenance"])
def test_a_worker_that_starts_while_redis_is_full_waits(
    postgres: EmbeddedPostgres, template: str, process: str
) -> None:
    with (
        redis_server() as redis,
        Redis.from_url(redis.url) as client,
        shared_harness(postgres, template, redis) as harness,
    ):
        client.config_set("maxmemory", 1)
        settings = harness.settings
        arguments = worker_arguments(settings) if process == "worker" else maintenance_arguments()
        with running(arguments, settings) as worker:
            wait_until(
                lambda: (
                    worker.log_text().count("queue=broker_full") >= 3
                    or worker.process.poll() is not None
                ),
                what="the worker to have tried several times",
                timeout=60,
            )
            assert worker.process.poll() is None, worker.log_text()

            client.config_set("maxmemory", 0)
            wait_until(
                lambda: "queue=service_started" in worker.log_text(),
                what="the worker to be ready",
                timeout=60,
            )
            if process == "worker":
                wait_until(lambda: "queue=worker_joined" in worker.log_text(), what="it to join")
                harness.reaches(harness.send("echo"), "completed")
            worker.signal(signal.SIGTERM)
            assert worker.ended(within=30) == 0
