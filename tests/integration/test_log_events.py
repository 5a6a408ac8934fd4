"""The events that workers and dispatchers log while they run."""

import logging
import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from redis import Redis

from overnight_server.control.cancel import cancel
from overnight_server.control.retry import retry
from overnight_server.dispatch import loop
from overnight_server.dispatch.fill import FillResult, fill
from overnight_server.dispatch.publish import BrokerUnreachable, Publisher
from overnight_server.domain.results import Interrupted, Raised, Returned
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.maintenance.reap import reap
from overnight_server.outcome.presence import WorkerDescription
from overnight_server.settings import Settings
from overnight_server.store.db import DatabaseUnreachable, Db
from overnight_server.telemetry import LogEvent
from overnight_server.wakeups.wake import Waker, WakeUpListener
from overnight_worker.beat_scheduler import Scheduler
from overnight_worker.execute import carry_out, start
from overnight_worker.presence import heartbeat_or_join
from overnight_worker.record_results import hand_back_by, settle_by
from overnight_worker.resources import WorkerResources
from tests.support.deployment import Deployment
from tests.support.graphs import graph
from tests.support.worker_in_process import NOWHERE, worker_resources
from tests.support.workers import worker_settings

Logged = Callable[[], list[str]]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    """Return the names of the events logged so far, in order; without those of the submits."""
    caplog.set_level(logging.DEBUG, logger="overnight")
    submit = LogEvent.TASK_ADDED.log_name
    return lambda: [name for name in re.findall(r"queue=(\w+)", caplog.text) if name != submit]


@pytest.fixture
def settings(database_url: str) -> Settings:
    return worker_settings(database_url, NOWHERE)


@pytest.fixture
def worker(settings: Settings, db: Db) -> Iterator[WorkerResources]:
    with worker_resources(settings, db) as worker:
        yield worker


def names(*events: LogEvent) -> set[str]:
    return {event.log_name for event in events}


def test_a_worker_logs_the_start_and_the_result_of_a_run(
    deployment: Deployment, worker: WorkerResources, logged: Logged
) -> None:
    deployment.agent()
    deployment.task(deployment.user(), type="echo")
    [claimed] = deployment.claim().claims

    carry_out(worker, [claimed.claim])
    carry_out(worker, [claimed.claim])

    assert logged().count(LogEvent.TASK_STARTED.log_name) == 1
    assert names(LogEvent.TASK_SETTLED, LogEvent.STALE_MESSAGE) <= set(logged())


def test_a_worker_logs_a_type_that_it_has_no_handler_for(
    deployment: Deployment, worker: WorkerResources, logged: Logged
) -> None:
    deployment.agent(types=["unknown"])
    deployment.task(deployment.user(), type="unknown")
    [claimed] = deployment.claim().claims

    carry_out(worker, [claimed.claim])

    assert names(LogEvent.HANDLER_MISSING, LogEvent.TASK_SETTLED) <= set(logged())


def test_a_worker_logs_what_it_gives_back_and_what_came_too_late(
    deployment: Deployment, db: Db, logged: Logged
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())

    settle_by(db, [(run, Interrupted("shutdown"))], deadline=0.0)
    settle_by(db, [(run, Returned("late"))], deadline=0.0)

    assert logged() == [LogEvent.TASK_HANDED_BACK.log_name, LogEvent.STALE_RESULT.log_name]


def test_a_worker_logs_a_claim_that_it_gives_up(
    deployment: Deployment, db: Db, logged: Logged
) -> None:
    deployment.agent()
    deployment.task(deployment.user())
    [claimed] = deployment.claim().claims

    hand_back_by(db, [claimed.claim], deadline=0.0)
    hand_back_by(db, [claimed.claim], deadline=0.0)

    assert logged() == [LogEvent.CLAIM_RELEASED.log_name]


def test_a_worker_logs_that_the_database_does_not_answer(
    deployment: Deployment, settings: Settings, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.agent()
    deployment.task(deployment.user())
    [claimed] = deployment.claim().claims
    nowhere = Db.connect("postgresql://nobody@127.0.0.1:1/nothing", role=None)
    monkeypatch.setattr("overnight_worker.execute.UNANSWERED_SECONDS", 0.0)

    start(WorkerResources(settings, nowhere, Waker(NOWHERE)), [claimed.claim])

    assert logged() == [LogEvent.DATABASE_UNREACHABLE.log_name]


def test_a_worker_logs_that_it_joins(deployment: Deployment, db: Db, logged: Logged) -> None:
    description = WorkerDescription(
        id="new", pool="default", capabilities=(), slots=1, types=("echo",)
    )

    for _ in range(2):
        heartbeat_or_join(db, description, liveness=timedelta(seconds=30))

    assert logged() == [LogEvent.WORKER_JOINED.log_name]
    assert deployment.rows("SELECT id FROM agents") == [{"id": "new"}]


def test_a_sweep_logs_the_run_that_it_takes_from_a_lost_worker(
    deployment: Deployment, db: Db, logged: Logged
) -> None:
    deployment.agent()
    deployment.running(deployment.user())
    deployment.move_clock(timedelta(hours=1))

    reap(db)

    assert LogEvent.TASK_REAPED.log_name in logged()


def test_a_dispatcher_logs_what_it_claims_and_publishes(
    deployment: Deployment, database_url: str, redis: EmbeddedRedis, logged: Logged
) -> None:
    settings = worker_settings(database_url, redis.url)
    deployment.agent()
    deployment.task(deployment.user())
    publisher = Publisher(settings)

    fill(deployment.dispatcher, publisher, settings, holder="d")

    publisher.close()
    expected = [LogEvent.CLAIMS_MADE, LogEvent.DISPATCH, LogEvent.DISPATCH_SUCCESS]
    assert logged() == [event.log_name for event in expected]


def test_a_dispatcher_logs_what_it_cannot_publish(
    deployment: Deployment, settings: Settings, logged: Logged
) -> None:
    deployment.agent()
    deployment.task(deployment.user())
    publisher = Publisher(settings)

    fill(deployment.dispatcher, publisher, settings, holder="d", broker_answers=True)

    publisher.close()
    assert LogEvent.DISPATCH_FAILED.log_name in logged()
    assert logged().count(LogEvent.CLAIM_RELEASED.log_name) == 1


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        (
            [DatabaseUnreachable("gone"), DatabaseUnreachable("gone")],
            [LogEvent.DATABASE_UNREACHABLE, LogEvent.DATABASE_BACK],
        ),
        (
            [BrokerUnreachable("gone"), BrokerUnreachable("gone")],
            [LogEvent.BROKER_UNREACHABLE, LogEvent.BROKER_BACK],
        ),
        (
            [BrokerUnreachable("gone"), DatabaseUnreachable("gone")],
            [
                LogEvent.BROKER_UNREACHABLE,
                LogEvent.BROKER_BACK,
                LogEvent.DATABASE_UNREACHABLE,
                LogEvent.DATABASE_BACK,
            ],
        ),
    ],
    ids=["database", "broker", "broker, then database"],
)
def test_a_dispatcher_logs_each_outage_and_its_end_once(  # noqa: PLR0917 - fixtures and cases
    settings: Settings,
    db: Db,
    logged: Logged,
    monkeypatch: pytest.MonkeyPatch,
    failures: list[Exception],
    expected: list[LogEvent],
) -> None:
    stop = threading.Event()
    outcomes = iter([*failures, None])

    def fill_or_fail(*_: object, **__: object) -> FillResult:
        failure = next(outcomes)
        if failure is not None:
            raise failure
        stop.set()
        return FillResult(sent=0, more=False)

    monkeypatch.setattr(loop, "fill", fill_or_fail)
    monkeypatch.setattr(loop, "RETRY_SECONDS", 0.0)
    publisher, listener = Publisher(settings), WakeUpListener(NOWHERE)

    loop.dispatch(db, publisher, listener, settings, stop)

    publisher.close()
    listener.close()
    assert logged() == [event.log_name for event in expected]


def test_a_failed_run_logs_the_class_of_its_failure(
    deployment: Deployment, db: Db, logged: Logged, caplog: pytest.LogCaptureFixture
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())

    settle_by(db, [(run, Raised("rate_limit", "too many", "Error"))], deadline=0.0)

    assert LogEvent.TASK_SETTLED.log_name in logged()
    assert "reason=rate_limit" in caplog.text


def test_a_cancel_is_logged_for_a_waiting_and_for_a_running_task(
    deployment: Deployment, logged: Logged
) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user)
    waiting = deployment.task(user)

    for task_id in (run.claim.task_id, waiting):
        cancel(deployment.app, user, task_id, actor="human:test")

    assert logged() == [LogEvent.CANCEL_REQUESTED.log_name, LogEvent.TASK_CANCELLED.log_name]


def test_a_dead_letter_and_its_retry_are_logged(
    deployment: Deployment, db: Db, logged: Logged
) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user)

    settle_by(db, [(run, Raised("error", "wrong", "Error", retryable=False))], deadline=0.0)
    retry(deployment.app, user, run.claim.task_id, actor="human:test")

    assert names(LogEvent.TASK_DEAD_LETTERED, LogEvent.TASK_REVIVED) <= set(logged())


def test_an_expired_claim_is_logged_as_released(
    deployment: Deployment, db: Db, logged: Logged
) -> None:
    deployment.agent()
    deployment.task(deployment.user())
    deployment.claim()
    deployment.move_clock(timedelta(hours=1))

    reap(db)

    assert logged().count(LogEvent.CLAIM_RELEASED.log_name) == 1


def test_the_end_of_a_graph_is_logged(deployment: Deployment, logged: Logged) -> None:
    user = deployment.user()

    for task_id in graph(deployment, user, 2, []):
        cancel(deployment.app, user, task_id, actor="human:test")

    assert logged().count(LogEvent.DAG_FINISHED.log_name) == 1


def test_beat_logs_once_that_redis_takes_no_messages(
    redis: EmbeddedRedis, logged: Logged, caplog: pytest.LogCaptureFixture
) -> None:
    app = Celery(set_as_current=False, broker=redis.url)
    scheduler = Scheduler(app, lazy=True)
    entry = ScheduleEntry("a sweep", task="nobody fetches this", schedule=60, app=app)
    with Redis.from_url(redis.url) as client:
        client.config_set("maxmemory", 1)
        try:
            scheduler.apply_entry(entry)
            scheduler.apply_entry(entry)
        finally:
            client.config_set("maxmemory", 0)
    scheduler.apply_entry(entry)
    scheduler.apply_entry(entry)
    app.close()

    assert logged() == [LogEvent.BROKER_UNREACHABLE.log_name, LogEvent.BROKER_BACK.log_name]
    assert "maxmemory" in caplog.text
    assert "Traceback" not in caplog.text
