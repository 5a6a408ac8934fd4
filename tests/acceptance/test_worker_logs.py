"""What a handler prints is in the logs of a real worker while the run goes on."""

import os
import signal

import pytest

from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from tests.support.wait import wait_until
from tests.support.workers import running_worker, shared_harness

LINES = ("printed line", "logged line", "context line")


def test_lines_are_seen_while_the_run_goes_on_and_survive_a_kill(
    postgres: EmbeddedPostgres,
    template: str,
    redis: EmbeddedRedis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    handlers = "tests.support.print_handler"
    with shared_harness(postgres, template, redis, handlers=handlers) as harness:

        def stored() -> str:
            rows = harness.deployment.rows("SELECT text FROM log_chunks ORDER BY seq")
            return "".join(row["text"] for row in rows)

        with running_worker(harness.settings) as worker:
            harness.send("print-and-wait")
            wait_until(lambda: all(line in stored() for line in LINES), what="the run's log")
            assert all(line in worker.log_text() for line in LINES)
            os.killpg(worker.process.pid, signal.SIGKILL)

        assert all(line in stored() for line in LINES)
