"""The log lines of a dispatch are the same for every way in which a task reaches its agent."""

import logging
import re
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from overnight.errors import StaleAttempt
from overnight_server.dispatch.fill import fill
from overnight_server.dispatch.publish import Publisher
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.results import Returned
from overnight_server.gate.claim import claim_one
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import reap
from overnight_server.outcome.agent_claims import read_claim, settle_claim
from overnight_server.store.db import Db
from overnight_server.telemetry import LogEvent
from overnight_server.wakeups.wake import Waker
from overnight_worker import slot_loop
from overnight_worker.execute import carry_out
from overnight_worker.identity import WORKER_ID
from overnight_worker.load_handlers import load_handlers
from overnight_worker.resources import WorkerResources
from overnight_worker.slot_loop import SlotLoop
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import CLAIM_SETTINGS, LEASE, POOL, Deployment
from tests.support.pull_agent import PullAgent, register_agent
from tests.support.workers import worker_settings

Lines = Callable[[LogEvent], list[str]]
LONG = timedelta(hours=1)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """Return the fields of the log lines of one event so far."""
    caplog.set_level(logging.INFO, logger="overnight")
    return lambda event: re.findall(rf"queue={event.log_name} ([^\n]*)", caplog.text)


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    return deployment.user()


@pytest.fixture
def worker(
    deployment: Deployment, database_url: str, redis: EmbeddedRedis, db: Db
) -> Iterator[WorkerResources]:
    """A worker with one slot, which has joined."""
    load_handlers(())
    deployment.agent(slots=1, agent_id=WORKER_ID)
    settings = worker_settings(database_url, redis.url)
    waker = Waker(redis.url, settings.redis_key_prefix)
    yield WorkerResources(settings, db, waker)
    waker.close()


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


@pytest.fixture
def agent(api_user: ApiUser) -> PullAgent:
    return register_agent(api_user)


def dispatched(task_id: TaskId, agent: str) -> tuple[list[str], list[str]]:
    shown = show_task(task_id)
    return [f"queue_id={shown} agent={agent}"], [f"queue_id={shown} task_id={shown}"]


def logged(lines: Lines) -> tuple[list[str], list[str]]:
    return lines(LogEvent.DISPATCH), lines(LogEvent.DISPATCH_SUCCESS)


def test_a_message_to_a_pool_is_logged(
    deployment: Deployment, user: UserId, worker: WorkerResources, lines: Lines
) -> None:
    task_id = deployment.task(user)
    publisher = Publisher(worker.settings)

    fill(deployment.dispatcher, publisher, worker.settings, holder="d")

    publisher.close()
    assert logged(lines) == dispatched(task_id, POOL)


def test_the_task_that_a_slot_claims_after_its_last_one_is_logged(
    deployment: Deployment,
    user: UserId,
    worker: WorkerResources,
    lines: Lines,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slot_loop, "LISTEN_SECONDS", 0.0)
    deployment.task(user)
    [claimed] = deployment.claim().claims
    next_task = deployment.task(user)
    waits_for_nothing = worker.settings.model_copy(update={"refill_seconds": 1.0})

    carry_out(WorkerResources(waits_for_nothing, worker.db, worker.waker), [claimed.claim])

    assert deployment.state(next_task) == "completed"
    assert logged(lines) == dispatched(next_task, WORKER_ID)


def test_the_task_of_an_idle_listener_is_logged(
    deployment: Deployment, user: UserId, worker: WorkerResources, lines: Lines
) -> None:
    task_id = deployment.task(user)

    # A new subscription claims at once, because a wake-up may have been missed.
    [run] = SlotLoop(worker).wait_for_runs()

    assert run.claim.task_id == task_id
    assert logged(lines) == dispatched(task_id, WORKER_ID)


def test_the_claim_of_a_pull_agent_is_logged(agent: PullAgent, lines: Lines) -> None:
    task_id = agent.api_user.row_id(agent.api_user.created(type="echo")["id"])

    agent.work()

    assert logged(lines) == dispatched(TaskId(task_id), agent.id)


def test_the_claim_of_a_caller_that_runs_the_task_itself_is_logged(
    deployment: Deployment, user: UserId, lines: Lines
) -> None:
    task_id = deployment.task(user)

    claim_one(deployment.dispatcher, holder="script", claim_settings=CLAIM_SETTINGS)

    assert logged(lines) == dispatched(task_id, "script")


def test_a_busy_agent_is_logged_and_is_never_final(agent: PullAgent, lines: Lines) -> None:
    task = agent.api_user.created(type="echo", max_attempts=1)

    for _ in range(2):
        assert agent.report(agent.work(), "release", reason="busy").status_code == 200

    expected = f'queue_id={task["id"]} error="agent busy" attempt=1/1'
    assert lines(LogEvent.DISPATCH_FAILED) == [expected, expected]


def test_a_claim_that_its_agent_never_starts_is_logged(
    agent: PullAgent, deployment: Deployment, lines: Lines
) -> None:
    task = agent.api_user.created(type="echo", max_attempts=3)
    agent.work()
    deployment.move_clock(LONG)

    reap(deployment.dispatcher)

    expected = f'queue_id={task["id"]} error="timeout" attempt=1/3'
    assert lines(LogEvent.DISPATCH_FAILED) == [expected]


def test_the_last_lost_run_of_a_task_is_final(
    deployment: Deployment, user: UserId, lines: Lines
) -> None:
    deployment.agent()
    task_id = deployment.task(user, max_attempts=2)
    for _ in range(2):
        [claimed] = deployment.claim().claims
        deployment.start(claimed)
        deployment.move_clock(LONG)
        reap(deployment.dispatcher)
        promote(deployment.dispatcher)

    assert deployment.state(task_id) == "dead_lettered"
    head = f'queue_id={show_task(task_id)} error="heartbeat_timeout"'
    assert lines(LogEvent.DISPATCH_FAILED) == [
        f"{head} attempt=1/2",
        f"{head} attempt=2/2 final=true",
    ]


def test_a_task_that_cannot_be_sent_to_an_agent_is_final(
    agent: PullAgent, deployment: Deployment, lines: Lines
) -> None:
    first = agent.api_user.created(type="echo", max_attempts=3)
    deployment.run(
        "UPDATE tasks SET payload = CAST(:nested AS jsonb)",
        nested='{"a":' + "[" * 480 + "]" * 480 + "}",
    )

    assert agent.claim().status_code == 204

    [line] = lines(LogEvent.DISPATCH_FAILED)
    assert line.startswith(f"queue_id={first['id']} error=")
    assert line.endswith("attempt=1/3 final=true")


def test_a_late_result_of_a_pull_agent_is_logged(
    agent: PullAgent, deployment: Deployment, lines: Lines
) -> None:
    task = agent.api_user.created(type="echo")
    work = agent.begin()
    deployment.move_clock(LONG)
    reap(deployment.dispatcher)

    assert agent.report(work, "complete", output="late").status_code == 409

    expected = f"queue_id={task['id']} epoch=1 reason=late worker={agent.id}"
    assert lines(LogEvent.STALE_RESULT) == [expected]


def test_a_result_whose_claim_ends_before_it_is_recorded_is_logged(
    deployment: Deployment, user: UserId, lines: Lines
) -> None:
    deployment.agent()
    run = deployment.running(user)
    held_claim = read_claim(deployment.dispatcher, run.claim, LEASE)
    deployment.move_clock(LONG)
    reap(deployment.dispatcher)

    with pytest.raises(StaleAttempt):
        settle_claim(deployment.dispatcher, held_claim, Returned("late"))

    [line] = lines(LogEvent.STALE_RESULT)
    assert line.startswith(f"queue_id={show_task(run.claim.task_id)} epoch=1 reason=completed")
