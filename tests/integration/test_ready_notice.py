"""NOTIFY task_ready: SQL listeners hear of ready tasks, at most once per tick."""

import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg2
import pytest
from psycopg2 import extensions
from sqlalchemy import text

from overnight_server.dispatch.loop import dispatch
from overnight_server.dispatch.publish import Publisher
from overnight_server.dispatch.ready_notice import ReadyNotice
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.store.db import Db
from overnight_server.wakeups.wake import WakeUpListener
from tests.rules.sources import ROOT
from tests.rules.test_docs import blocks
from tests.support import logins
from tests.support.deployment import Deployment
from tests.support.wait import wait_until
from tests.support.workers import worker_settings

GUIDE = Path("docs/guides/events.md")


@pytest.fixture
def listener(database_url: str) -> Iterator[extensions.connection]:
    """A session of the API's login, which row-level security limits, that listens."""
    connection = psycopg2.connect(logins.for_api(database_url))
    connection.autocommit = True
    connection.cursor().execute("LISTEN task_ready")
    yield connection
    connection.close()


def heard(listener: extensions.connection) -> list[tuple[str, str]]:
    """Return channel and payload of the notifications so far."""
    # Notifications that were committed before a statement arrive with its response.
    listener.cursor().execute("SELECT 1")
    return [(notice.channel, notice.payload) for notice in listener.notifies]


def test_a_ready_task_is_announced_once_per_tick_without_a_payload(
    deployment: Deployment, listener: extensions.connection
) -> None:
    notice = ReadyNotice(deployment.dispatcher)
    deployment.task(deployment.user())
    deployment.task(deployment.user())

    waits = [notice.send() for _ in range(3)]

    assert waits[0] == 0.0
    assert all(0 < wait <= 1 for wait in waits[1:])
    assert heard(listener) == [("task_ready", "")]


def test_a_task_that_stays_ready_is_announced_in_every_tick(
    deployment: Deployment, listener: extensions.connection
) -> None:
    notice = ReadyNotice(deployment.dispatcher)
    deployment.task(deployment.user())

    for _ in range(2):
        notice._checked_at = -math.inf
        notice.send()

    assert len(heard(listener)) == 2


def test_nothing_is_announced_without_a_task_that_may_run(
    deployment: Deployment, listener: extensions.connection
) -> None:
    deployment.agent()
    deployment.running(deployment.user())
    paused = deployment.user()
    deployment.task(paused)
    deployment.run("UPDATE lanes SET paused = true WHERE user_id = :user", user=paused)

    ReadyNotice(deployment.dispatcher).send()

    assert heard(listener) == []


def test_a_submit_and_a_settle_notify_nobody_themselves(
    deployment: Deployment, listener: extensions.connection
) -> None:
    deployment.agent()
    deployment.running(deployment.user())

    assert heard(listener) == []


def test_the_example_of_the_guide_hears_of_a_ready_task(
    deployment: Deployment,
    database_url: str,
    redis: EmbeddedRedis,
    connect: Callable[..., Db],
    tmp_path: Path,
) -> None:
    # Postgres shows a session's statement only to its own login.
    watcher = connect("watcher", role=None)
    settings = worker_settings(database_url, redis.url)
    [code] = blocks(GUIDE, "py")
    program = tmp_path / "listen.py"
    program.write_text(code, encoding="utf-8")
    example = subprocess.Popen(
        [sys.executable, "-W", "error", program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={"DATABASE_URL": database_url},
    )
    stop, publisher = threading.Event(), Publisher(settings)
    wake_ups = WakeUpListener(redis.url, settings.redis_key_prefix)
    dispatcher = threading.Thread(
        target=dispatch, args=(deployment.dispatcher, publisher, wake_ups, settings, stop)
    )
    try:
        wait_until(lambda: is_listening(watcher), what="the example to listen")
        deployment.task(deployment.user())
        dispatcher.start()
        output, _ = example.communicate(timeout=60)
    finally:
        stop.set()
        example.kill()
        dispatcher.join(20)
        publisher.close()
        wake_ups.close()

    assert output == "task_ready\n"


def is_listening(watcher: Db) -> bool:
    """Whether a session of this database waits after its LISTEN."""
    sql = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND state = 'idle' AND query = 'LISTEN task_ready'"
    )
    with watcher.engine.begin() as tx:
        return bool(tx.execute(sql).scalar_one())
