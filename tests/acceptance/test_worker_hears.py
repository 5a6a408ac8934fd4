"""A worker drops forged messages, and restarts when it no longer reads any."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redis import Redis

from overnight.models.admin import Worker
from overnight_server.control.cancel import cancel
from overnight_server.dispatch.celery_settings import EXECUTE, agent_queue
from overnight_server.insight.workers import list_workers
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from tests.support.wait import wait_until
from tests.support.workers import WorkerHarness, running_worker, shared_harness

LIVENESS = timedelta(seconds=6)
FAR_FUTURE = datetime(2999, 1, 1, tzinfo=UTC)
# What anybody who can write to Redis may put into a queue.
GARBAGE = (
    b"not json",
    b"\xff\xfe",
    b"[" * 100_000,
    b"null",
    b"[]",
    b"{}",
    json.dumps({"properties": 1, "headers": [], "body": {}}).encode(),
    json.dumps({"properties": {"delivery_tag": "1", "delivery_info": {}}, "headers": {}}).encode(),
)


@pytest.fixture
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> Iterator[WorkerHarness]:
    with shared_harness(
        postgres,
        template,
        redis,
        worker_liveness=LIVENESS.total_seconds(),
        concurrency=2,
        handlers="tests.support.deaf_handler",
    ) as harness:
        yield harness


@pytest.fixture(autouse=True)
def deaf_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file whose presence makes the worker deaf."""
    path = tmp_path / "deaf"
    monkeypatch.setenv("DEAF_WHILE", str(path))
    return path


def test_forged_messages_are_dropped_counted_and_never_held(
    harness: WorkerHarness, redis: EmbeddedRedis
) -> None:
    settings, celery = harness.settings, harness.publisher._celery
    queue = agent_queue(settings.pool)
    later = 40
    with running_worker(settings) as worker, Redis.from_url(redis.url) as client:
        [process] = harness.deployment.rows("SELECT id FROM agents")
        for _ in range(later):
            celery.send_task(EXECUTE, args=[], queue=queue, eta=FAR_FUTURE)
        celery.send_task("celery.chord_unlock", args=["x", None], queue=queue)
        celery.send_task(EXECUTE, args=[], queue=queue, time_limit=0.001)
        client.lpush(settings.redis_key_prefix + queue, *GARBAGE)

        task_id = harness.send("echo", {"still": "hears"})

        harness.reaches(task_id, "completed")
        wait_until(
            lambda: _listed(harness)[0].dropped_messages == later + 2 + len(GARBAGE),
            what="every forged message to be counted",
        )
        assert [row["id"] for row in harness.deployment.rows("SELECT id FROM agents")] == [
            process["id"]
        ], worker.log_text()
        # Not a line for each of them.
        assert worker.log_text().count("queue=message_dropped") == 2


def _listed(harness: WorkerHarness) -> list[Worker]:
    return list_workers(harness.deployment.app, liveness=LIVENESS)


def test_a_deaf_worker_is_listed_finishes_its_runs_and_restarts(
    harness: WorkerHarness, deaf_while: Path
) -> None:
    with running_worker(harness.settings) as worker:
        busy = harness.send("sleep", {"seconds": 600})
        deaf_while.touch()

        wait_until(
            lambda: [listed.status for listed in _listed(harness)] == ["deaf"],
            what="the worker to notice that it is deaf",
            timeout=60,
        )

        # It has a free slot and a run: the run goes on, and nothing else is claimed for the worker.
        assert harness.deployment.state(busy) == "running"
        waiting = harness.deployment.task(harness.user, type="echo")
        assert not harness.deployment.claim().claims

        deaf_while.unlink()
        cancel(harness.deployment.app, harness.user, busy, actor="human:test")
        wait_until(
            lambda: [listed.status for listed in _listed(harness)] == ["active"],
            what="the worker to start anew",
            timeout=60,
        )
        assert len(harness.deployment.rows("SELECT 1 FROM agents")) == 2
        harness.publish(harness.claimed(waiting))
        harness.reaches(waiting, "completed")
        # The process id is the same, so whoever supervises the worker sees no end.
        assert worker.process.poll() is None
        assert "reason=deaf" in worker.log_text()


def test_a_busy_worker_is_never_taken_for_deaf(harness: WorkerHarness) -> None:
    with running_worker(harness.settings) as worker:
        runs = [harness.send("sleep", {"seconds": 600}) for _ in range(2)]
        [since] = [row["at"] for row in harness.deployment.rows("SELECT clock() AS at")]
        long_after = since + 3 * LIVENESS

        wait_until(
            lambda: _listed(harness)[0].last_seen_at > long_after,
            what="more heartbeats than a deaf worker would send",
            timeout=60,
        )

        assert {harness.deployment.state(run) for run in runs} == {"running"}
        assert "queue=worker_deaf" not in worker.log_text()
