"""Idle listeners: the next task starts without a message, and messages go first."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from overnight.handlers.context import Context
from overnight.handlers.registry import Handler, registered
from overnight_server.dispatch.celery_settings import agent_queue
from overnight_server.dispatch.fill import fill
from overnight_server.dispatch.loop import dispatch
from overnight_server.dispatch.publish import Publisher
from overnight_server.domain.claims import Run
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.wakeups.idle_slot_listener import (
    SlotSignal,
    SlotSubscription,
    dismiss_idle_listeners,
    has_idle_listener,
)
from overnight_server.wakeups.wake import SLOTS_CHANNEL, Waker, WakeUpListener
from overnight_worker import resources, slot_loop
from overnight_worker.execute import carry_out
from overnight_worker.identity import WORKER_ID
from overnight_worker.shutdown import SHUTDOWN_FLAG
from tests.support.deployment import POOL, Deployment
from tests.support.wait import wait_until
from tests.support.workers import worker_settings

NOBODY_LISTENS = "redis://127.0.0.1:1/0"
LONG = 20.0
QUEUE = agent_queue("default")


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid4().hex[:8]}:"


@pytest.fixture
def client(redis: EmbeddedRedis) -> Iterator[Redis]:
    with Redis.from_url(redis.url) as client:
        yield client


@pytest.fixture
def settings(database_url: str, redis: EmbeddedRedis) -> Settings:
    return worker_settings(database_url, redis.url)


@pytest.fixture
def worker(settings: Settings, db: Db) -> Iterator[resources.WorkerResources]:
    """A worker process whose slot listens until it is dismissed, or its time is up."""
    waker = Waker(str(settings.redis_url), settings.redis_key_prefix)
    # Only a connected waker wakes before a slot can listen: otherwise the wake-up of the first
    # task would reach the slot at any time later, and the slot would claim what is there then.
    waker.wake()
    wait_until(
        lambda: waker._connection is not None and not waker._using_connection.locked(),
        what="the waker to be connected",
    )
    yield resources.WorkerResources(settings, db, waker)
    waker.close()


@pytest.fixture
def ran(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Register a quick handler; return the list of titles it has run."""
    titles: list[str] = []

    def add_title(ctx: Context) -> None:
        titles.append(ctx.title)

    handlers = {**registered(), "quick": Handler("quick", add_title, ())}
    monkeypatch.setattr("overnight_worker.runners.choose.registered", lambda: handlers)
    deployment.run("INSERT INTO type_durations (type, seconds) VALUES ('quick', 0.001)")
    deployment.agent(slots=1, agent_id=WORKER_ID)
    return titles


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs each claim of an idle listener started."""
    counts: list[int] = []
    claim_first = slot_loop.SlotLoop._claim_first

    def counted(self: slot_loop.SlotLoop, *prepared: Any) -> list[Run]:
        runs = claim_first(self, *prepared)
        counts.append(len(runs))
        return runs

    monkeypatch.setattr(slot_loop.SlotLoop, "_claim_first", counted)
    return counts


def test_an_idle_listener_is_woken_before_a_dispatcher(redis: EmbeddedRedis, prefix: str) -> None:
    waker = Waker(redis.url, prefix)
    dispatcher = WakeUpListener(redis.url, prefix)
    dispatcher.wait(LONG, threading.Event())
    with SlotSubscription(redis.url, prefix, "default", QUEUE) as subscription:
        _signals(subscription, 1)

        waker.wake()

        assert subscription.wait(LONG) is SlotSignal.WAKE_UP
        assert dispatcher.wait(LONG, threading.Event())
    dispatcher.close()
    waker.close()


def test_an_idle_listener_runs_the_next_task_and_ends_when_dismissed(
    deployment: Deployment, worker: resources.WorkerResources, client: Redis, ran: list[str]
) -> None:
    user = deployment.user()
    slot = _run_one_task(deployment, worker, "first")
    _wait_until_idle_listener(worker, client)
    deployment.task(user, type="quick", title="second")
    worker.waker.wake()
    wait_until(lambda: ran == ["first", "second"], what="the second to run")
    # It must be recorded, and the slot must listen again, before the dismissal is sent.
    wait_until(lambda: _count(deployment, "completed") == 2, what="the second to be recorded")
    _wait_until_idle_listener(worker, client)

    dismiss_idle_listeners(client, worker.settings.redis_key_prefix, POOL)

    slot.join(LONG)
    assert not slot.is_alive()
    history = deployment.rows(
        "SELECT e.to_state FROM events e JOIN tasks t ON t.id = e.task_id"
        " WHERE t.title = 'second' ORDER BY e.seq"
    )
    assert [row["to_state"] for row in history] == ["ready", "running", "completed"]


def test_a_requested_idle_listener_runs_the_next_task(
    deployment: Deployment, worker: resources.WorkerResources, client: Redis, ran: list[str]
) -> None:
    slot = threading.Thread(target=carry_out, args=(worker, []), daemon=True)
    slot.start()
    _wait_until_idle_listener(worker, client)
    deployment.task(deployment.user(), type="quick", title="first")

    worker.waker.wake()

    wait_until(lambda: _count(deployment, "completed") == 1, what="the task to be recorded")
    # A slot that has not subscribed again yet would miss the dismissal.
    _wait_until_idle_listener(worker, client)
    dismiss_idle_listeners(client, worker.settings.redis_key_prefix, POOL)
    slot.join(LONG)
    assert ran == ["first"]
    assert not slot.is_alive()


@pytest.mark.usefixtures("ran")
def test_a_task_that_reaches_an_idle_listener_lets_its_slot_continue(
    deployment: Deployment, worker: resources.WorkerResources, client: Redis
) -> None:
    """The time for which a busy slot continues is over here; it starts again with the task."""
    loop = slot_loop.SlotLoop(worker)
    runs: list[Run] = []
    slot = threading.Thread(target=lambda: runs.extend(loop.wait_for_runs()), daemon=True)
    slot.start()
    _wait_until_idle_listener(worker, client)
    loop._continue_until = 0.0
    task_id = deployment.task(deployment.user(), type="quick")

    worker.waker.wake()

    slot.join(LONG)
    assert [run.claim.task_id for run in runs] == [task_id]
    assert loop.continue_after(runs[0]) is loop


@pytest.mark.usefixtures("ran")
def test_another_slot_is_requested_when_the_time_of_the_first_is_up(
    deployment: Deployment,
    settings: Settings,
    worker: resources.WorkerResources,
    client: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slot_loop, "LISTEN_SECONDS", 1.0)
    queue = settings.redis_key_prefix + QUEUE
    without_polls = settings.model_copy(update={"poll_interval": 2 * LONG})
    with _dispatching(deployment, without_polls):
        wait_until(lambda: client.llen(queue) == 1, what="the first request")
        client.delete(queue)

        carry_out(worker, [])

        wait_until(lambda: client.llen(queue) == 1, timeout=LONG, what="the second request")


def test_a_pool_gets_one_request_until_it_has_an_idle_listener(
    deployment: Deployment, settings: Settings, client: Redis
) -> None:
    queue, prefix = settings.redis_key_prefix + QUEUE, settings.redis_key_prefix
    publisher = Publisher(settings)

    def messages_after_a_pass(settings: Settings = settings) -> int:
        fill(deployment.dispatcher, publisher, settings, holder="d")
        return client.llen(queue)

    never = settings.model_copy(update={"refill_seconds": 0.0})
    for_one_message = settings.model_copy(update={"max_tasks_per_child": 1})
    deployment.agent(slots=1)
    counts = [messages_after_a_pass(never), messages_after_a_pass(for_one_message)]
    counts += [messages_after_a_pass() for _ in range(2)]
    client.delete(queue)
    with SlotSubscription(str(settings.redis_url), prefix, POOL, QUEUE):
        counts.append(messages_after_a_pass())
    deployment.task(deployment.user())
    deployment.claim()
    counts.append(messages_after_a_pass())
    publisher.close()

    assert counts == [0, 0, 1, 1, 0, 0]


def test_an_idle_listener_ends_when_the_worker_shuts_down(
    deployment: Deployment,
    worker: resources.WorkerResources,
    client: Redis,
    ran: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slot = _run_one_task(deployment, worker, "first")
    _wait_until_idle_listener(worker, client)

    monkeypatch.setattr(type(SHUTDOWN_FLAG), "is_set", property(lambda _: True))

    slot.join(LONG)
    assert not slot.is_alive()


@pytest.mark.parametrize("seconds", [None, 3600.0], ids=["unknown", "long"])
def test_an_idle_listener_claims_a_task_whatever_its_duration(
    deployment: Deployment,
    worker: resources.WorkerResources,
    client: Redis,
    ran: list[str],
    seconds: float | None,
) -> None:
    slot = _run_one_task(deployment, worker, "first")
    wait_until(lambda: _count(deployment, "completed") == 1, what="the first to be recorded")
    _wait_until_idle_listener(worker, client)
    deployment.run("DELETE FROM type_durations")
    if seconds is not None:
        deployment.run("INSERT INTO type_durations (type, seconds) VALUES ('quick', :s)", s=seconds)
    task_id = deployment.task(deployment.user(), type="quick", title="second")

    worker.waker.wake()

    wait_until(lambda: deployment.state(task_id) == "completed", what="the task to complete")
    _wait_until_idle_listener(worker, client)
    dismiss_idle_listeners(client, worker.settings.redis_key_prefix, POOL)
    slot.join(LONG)
    assert deployment.row(task_id)["epoch"] == 1
    assert ran == ["first", "second"]


def test_nobody_claims_a_type_that_no_worker_handles(
    deployment: Deployment,
    worker: resources.WorkerResources,
    client: Redis,
    ran: list[str],
    claims: list[int],
) -> None:
    slot = _run_one_task(deployment, worker, "first")
    _wait_until_idle_listener(worker, client)
    deployment.run("UPDATE agents SET types = '{quick}'")
    unknown = deployment.task(deployment.user(), type="never seen")
    _wake_and_wait_for_claim(worker, claims)

    claimed = [claimed.claim.task_id for claimed in deployment.claim().claims]

    dismiss_idle_listeners(client, worker.settings.redis_key_prefix, POOL)
    slot.join(LONG)
    assert claimed == []
    assert deployment.state(unknown) == "ready"


def test_an_idle_listener_whose_slot_the_dispatcher_has_filled_claims_nothing(
    deployment: Deployment,
    worker: resources.WorkerResources,
    client: Redis,
    ran: list[str],
    claims: list[int],
) -> None:
    slot = _run_one_task(deployment, worker, "first")
    _wait_until_first_claim(worker, client, claims)
    dispatched = deployment.task(deployment.user(), type="never seen")
    deployment.claim()
    waiting = deployment.task(deployment.user(), type="quick", title="waiting")
    _wake_and_wait_for_claim(worker, claims)

    dismiss_idle_listeners(client, worker.settings.redis_key_prefix, POOL)
    slot.join(LONG)

    assert [deployment.state(dispatched), deployment.state(waiting)] == ["claimed", "ready"]
    assert ran == ["first"]


@pytest.mark.usefixtures("ran")
def test_a_message_to_the_pool_ends_the_listening(
    deployment: Deployment,
    worker: resources.WorkerResources,
    client: Redis,
    claims: list[int],
    settings: Settings,
) -> None:
    slot = _run_one_task(deployment, worker, "first")
    _wait_until_first_claim(worker, client, claims)
    deployment.task(deployment.user(), type="never seen")

    with _dispatching(deployment, settings):
        slot.join(LONG)

    assert not slot.is_alive()


def test_an_idle_listener_that_may_not_claim_wakes_the_dispatchers(
    deployment: Deployment,
    worker: resources.WorkerResources,
    client: Redis,
    ran: list[str],
    claims: list[int],
) -> None:
    prefix = worker.settings.redis_key_prefix
    dispatcher = WakeUpListener(str(worker.settings.redis_url), prefix)
    slot = _run_one_task(deployment, worker, "first")
    _wait_until_first_claim(worker, client, claims)
    while dispatcher.wait(0.1, threading.Event()):
        pass  # wake-ups of the first task
    deployment.task(deployment.user(), type="quick", required_capabilities=["gpu"])

    client.publish(prefix + SLOTS_CHANNEL, "")

    assert dispatcher.wait(LONG, threading.Event())
    dismiss_idle_listeners(client, prefix, POOL)
    slot.join(LONG)
    dispatcher.close()
    assert (ran, sum(claims)) == (["first"], 0)


@contextmanager
def _dispatching(deployment: Deployment, settings: Settings) -> Iterator[None]:
    """Run a dispatcher in a thread."""
    stop = threading.Event()
    publisher = Publisher(settings)
    listener = WakeUpListener(str(settings.redis_url), settings.redis_key_prefix)
    dispatcher = threading.Thread(
        target=dispatch,
        args=(deployment.dispatcher, publisher, listener, settings, stop),
        daemon=True,
    )
    dispatcher.start()
    try:
        yield
    finally:
        stop.set()
        dispatcher.join(LONG)
        listener.close()
        publisher.close()


def _signals(subscription: SlotSubscription, count: int) -> list[SlotSignal]:
    return [subscription.wait(0.2) for _ in range(count)]


def _run_one_task(
    deployment: Deployment, worker: resources.WorkerResources, title: str
) -> threading.Thread:
    """Let a slot run one task in a thread, as after a message; it listens afterwards."""
    deployment.task(deployment.user(), type="quick", title=title)
    [claimed] = deployment.claim().claims
    slot = threading.Thread(target=carry_out, args=(worker, [claimed.claim]), daemon=True)
    slot.start()
    return slot


def _wait_until_idle_listener(worker: resources.WorkerResources, client: Redis) -> None:
    prefix = worker.settings.redis_key_prefix
    wait_until(lambda: has_idle_listener(client, prefix, [POOL]), what="the slot to listen")


def _wait_until_first_claim(
    worker: resources.WorkerResources, client: Redis, claims: list[int]
) -> None:
    """Wait until the slot listens and has looked once for a task that it may have missed.

    It subscribes before it looks: a task that is inserted in between is claimed by the slot.
    """
    _wait_until_idle_listener(worker, client)
    wait_until(lambda: claims, what="its first claim")


def _count(deployment: Deployment, state: str) -> int:
    return int(deployment.one("SELECT count(*) AS n FROM tasks WHERE state = :s", s=state)["n"])


def _wake_and_wait_for_claim(worker: resources.WorkerResources, claims: list[int]) -> None:
    before = len(claims)
    worker.waker.wake()
    wait_until(lambda: len(claims) > before, what="the slot to claim")
