"""The drill of the Celery guide: kill -9 and FLUSHALL under load, bare Celery beside Overnight."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from overnight.celery import durable
from overnight_server.local.postgres import EmbeddedPostgres
from tests.support.celery_functions import define
from tests.support.celery_worker import celery_worker, kill_group
from tests.support.servers import redis_server
from tests.support.stack import stack
from tests.support.wait import wait_until
from tests.support.workers import working_deployment

TASKS = 1000
DONE_BEFORE = 200
QUIET_SECONDS = 10
BARE = "tests.support.celery_with_redis"


@dataclass(frozen=True)
class Side:
    """One of the two apps, and the folder in which its tasks leave a file each."""

    app: Any
    folder: Path

    def send(self, number: int) -> None:
        """Send one task."""
        self.app.tasks["test.record"].delay(str(self.folder), number)

    def done(self) -> int:
        """Return how many tasks have run."""
        return sum(1 for _ in self.folder.iterdir())

    def repeated(self) -> int:
        """Return how many runs there were besides the first of each task."""
        return sum(len(file.read_text().splitlines()) - 1 for file in self.folder.iterdir())


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_kill_9_and_flushall_lose_tasks_of_bare_celery_and_none_of_ours(
    postgres: EmbeddedPostgres, template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("bare", "ours")]
    for folder in folders:
        folder.mkdir()
    with redis_server() as redis, working_deployment(postgres, template) as deployment:
        monkeypatch.setenv("TEST_CELERY_REDIS", redis.url)
        database = deployment.owner.engine.url.render_as_string(hide_password=False)
        handlers = "tests.support.celery_with_overnight"
        bare_app = Celery("bare", broker=redis.url, set_as_current=False)
        bare_app.conf.broker_transport_options = {"global_keyprefix": "celery-test:"}
        with stack(deployment, database, redis.url, tmp_path, handlers=handlers) as overnight:
            overnight.start("api", "dispatcher", "maintenance", "beat")
            overnight.ready()
            _, client = overnight.user()
            ours_app = durable(Celery("ours", set_as_current=False), client=client)
            bare, ours = Side(define(bare_app), folders[0]), Side(define(ours_app), folders[1])
            for number in range(TASKS):
                bare.send(number)
                ours.send(number)

            overnight.start("worker")
            wait_until(ours.done, what="our worker to start", timeout=120)
            with celery_worker(BARE, tmp_path / "first.log") as worker:
                wait_until(
                    lambda: min(bare.done(), ours.done()) >= DONE_BEFORE,
                    what="both to be under load",
                    timeout=120,
                )
                before = (bare.done(), ours.done())
                overnight.kill("worker")
                kill_group(worker)
                Redis.from_url(redis.url).flushall()

            overnight.ended("worker")
            overnight.start("worker")
            with celery_worker(BARE, tmp_path / "second.log"):
                overnight.drained(timeout=300)
                _wait_until_quiet(bare)

    lost = {"bare Celery": TASKS - bare.done(), "Overnight": TASKS - ours.done()}
    print(  # noqa: T201 - the figures of the guide
        f"of {TASKS} tasks, {before} done before: lost {lost};"
        f" runs repeated: {bare.repeated()}, {ours.repeated()}"
    )
    assert max(before) < TASKS
    assert lost["Overnight"] == 0
    assert lost["bare Celery"] > 0


def _wait_until_quiet(side: Side) -> None:
    """Wait until no task has run for some time."""
    done, since = side.done(), time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        time.sleep(0.2)
        if side.done() != done:
            done, since = side.done(), time.monotonic()
