"""The events that acts log after their commit, for every caller."""

import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from overnight.errors import TaskNotFound
from overnight_server.control.cancel import cancel, cancel_dag
from overnight_server.control.retry import retry
from overnight_server.domain.ids import UserId, new_task_id
from overnight_server.domain.results import Died, Raised, Returned
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit, submit_dag
from overnight_server.maintenance.deadlines import dead_letter_passed
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import reap
from overnight_server.outcome.settle import settle
from overnight_server.store.db import Db
from overnight_server.telemetry import LogEvent
from tests.support.deployment import AGENT, LOOSE, Deployment

ME = "user:me"
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
Lines = Callable[[LogEvent], list[str]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """Return the log lines of one event so far."""
    caplog.set_level(logging.DEBUG, logger="overnight")
    return lambda event: re.findall(rf"queue={event.log_name} ([^\n]*)", caplog.text)


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


def test_a_cancel_logs_a_cancelled_and_a_running_task(
    deployment: Deployment, user: UserId, lines: Lines
) -> None:
    run = deployment.running(user)
    waiting = deployment.task(user)

    cancel(deployment.app, user, waiting, actor=ME)
    cancel(deployment.app, user, run.claim.task_id, actor=ME)

    [cancelled] = lines(LogEvent.TASK_CANCELLED)
    [requested] = lines(LogEvent.CANCEL_REQUESTED)
    assert f"actor={ME}" in cancelled
    assert f"actor={ME}" in requested


def test_a_graph_logs_its_submit_and_its_end_once(
    deployment: Deployment, user: UserId, lines: Lines
) -> None:
    tasks = [NewTask("one", "echo"), NewTask("two", "echo")]
    dag = submit_dag(deployment.app, user, tasks, LOOSE, title="pair")

    cancel_dag(deployment.app, user, dag.dag_id, actor=ME)

    assert len(lines(LogEvent.DAG_ADDED)) == 1
    [finished] = lines(LogEvent.DAG_FINISHED)
    assert "state=cancelled" in finished
    assert "tasks=2" in finished


def test_a_lone_task_logs_its_submit_and_no_graph(
    deployment: Deployment, user: UserId, lines: Lines
) -> None:
    submit(deployment.app, user, NewTask("one", "echo"), LOOSE)
    [claimed] = deployment.claim().claims
    run = deployment.start(claimed)
    assert run is not None

    settle(deployment.dispatcher, run, Returned("ok"), agent=AGENT)

    assert len(lines(LogEvent.TASK_ADDED)) == 1
    assert not lines(LogEvent.DAG_FINISHED)


def test_a_dead_letter_and_its_retry_are_logged(
    deployment: Deployment, user: UserId, lines: Lines
) -> None:
    run = deployment.running(user, max_attempts=1)

    settle(deployment.dispatcher, run, Raised("error", "no"), agent=AGENT)
    retry(deployment.app, user, run.claim.task_id, actor=ME)

    [dead] = lines(LogEvent.TASK_DEAD_LETTERED)
    [revived] = lines(LogEvent.TASK_REVIVED)
    assert "attempts=1" in dead
    assert f"actor={ME}" in revived


def test_a_task_that_kills_its_runs_is_logged_as_poison(
    deployment: Deployment, user: UserId, lines: Lines
) -> None:
    run = deployment.running(user)
    settle(deployment.dispatcher, run, Died(), agent="worker-1")
    deployment.move_clock(timedelta(minutes=10))
    promote(deployment.dispatcher)
    [claimed] = deployment.claim().claims
    again = deployment.start(claimed)
    assert again is not None

    settle(deployment.dispatcher, again, Died(), agent="worker-2")

    [poison] = lines(LogEvent.POISON_FOUND)
    assert "deaths=2" in poison
    assert "workers=2" in poison


def test_an_expired_claim_is_logged_as_released(
    deployment: Deployment, user: UserId, lines: Lines
) -> None:
    deployment.task(user)
    deployment.claim()
    deployment.move_clock(timedelta(hours=1))

    reap(deployment.dispatcher)

    assert len(lines(LogEvent.CLAIM_RELEASED)) == 1
    assert not lines(LogEvent.TASK_REAPED)


def test_a_passed_deadline_is_logged_as_a_dead_letter(
    deployment: Deployment, user: UserId, lines: Lines
) -> None:
    deployment.set_clock(NOON)
    deployment.task(user, deadline_at=NOON + timedelta(minutes=1))
    deployment.set_clock(NOON + timedelta(hours=1))

    dead_letter_passed(deployment.dispatcher)

    [dead] = lines(LogEvent.TASK_DEAD_LETTERED)
    assert "reason=deadline_exceeded" in dead


class RecordedWakeUps:
    """Records which wake-ups were sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def wake(self) -> None:
        self.sent.append("wake")

    def cancel_requested(self) -> None:
        self.sent.append("cancel_requested")


def test_an_act_sends_its_wake_ups_after_the_commit(deployment: Deployment, user: UserId) -> None:
    wake_ups = RecordedWakeUps()
    db = Db(deployment.app.engine, wake_ups=wake_ups)
    run = deployment.running(user)

    cancel(db, user, run.claim.task_id, actor=ME)
    submit(db, user, NewTask("one", "echo"), LOOSE)
    with pytest.raises(TaskNotFound):
        cancel(db, user, new_task_id(), actor=ME)

    assert wake_ups.sent == ["cancel_requested", "wake"]
