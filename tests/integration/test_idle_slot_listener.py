"""Slots that linger: the next quick task starts without a message, and messages are not kept."""

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
from tests.support.waiting import wait_until
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
    """A worker's process whose slot stays until it is sent off, or its time is up."""
    waker = Waker(str(settings.redis_url), settings.redis_key_prefix)
    yield resources.WorkerResources(settings, db, waker)
    waker.close()


@pytest.fixture
def ran(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Register a quick handler; what it ran is written down here."""
    seen: list[str] = []

    def note(ctx: Context) -> None:
        seen.append(ctx.title)

    known = {**registered(), "quick": Handler("quick", note, ())}
    monkeypatch.setattr("overnight_worker.execute.registered", lambda: known)
    deployment.run("INSERT INTO type_durations (type, seconds) VALUES ('quick', 0.001)")
    deployment.agent(slots=1, agent_id=WORKER_ID)
    return seen


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much each look of a lingering slot brought."""
    brought: list[int] = []
    look = slot_loop.SlotLoop._claim_first

    def counted(self: slot_loop.SlotLoop, *prepared: Any) -> list[Run]:
        runs = look(self, *prepared)
        brought.append(len(runs))
        return runs

    monkeypatch.setattr(slot_loop.SlotLoop, "_claim_first", counted)
    return brought


def test_an_ear_that_opens_looks_once(redis: EmbeddedRedis, prefix: str) -> None:
    """Whatever was said before may have been for it."""
    with SlotSubscription(redis.url, prefix, "default", QUEUE) as ear:
        assert _words(ear, 2) == [SlotSignal.SUBSCRIBED, SlotSignal.NOTHING]


def test_an_ear_forgets_what_it_did_not_take_in_before_it_closed(
    redis: EmbeddedRedis, client: Redis, prefix: str
) -> None:
    ear = SlotSubscription(redis.url, prefix, "default", QUEUE)
    with ear:
        dismiss_idle_listeners(client, prefix, "default")
        client.publish(prefix + SLOTS_CHANNEL, "")

    with ear:
        assert _words(ear, 2) == [SlotSignal.SUBSCRIBED, SlotSignal.NOTHING]


def test_an_ear_hears_pings_and_its_own_pool_alone(
    redis: EmbeddedRedis, client: Redis, prefix: str
) -> None:
    with SlotSubscription(redis.url, prefix, "default", QUEUE) as ear:
        _words(ear, 2)
        dismiss_idle_listeners(client, prefix, "gpu")
        client.publish(prefix + SLOTS_CHANNEL, "")
        assert ear.wait(LONG) is SlotSignal.WAKE_UP
        # Together, or the first could be heard before the second is on its way.
        with client.pipeline() as both:
            both.publish(prefix + SLOTS_CHANNEL, "")
            dismiss_idle_listeners(both, prefix, "default")
            both.execute()

        assert ear.wait(LONG) is SlotSignal.LEAVE


def test_the_dispatcher_sees_whether_somebody_lingers(
    redis: EmbeddedRedis, client: Redis, prefix: str
) -> None:
    ear = SlotSubscription(redis.url, prefix, "default", QUEUE)
    seen = [has_idle_listener(client, prefix, ["default"])]
    with ear:
        seen += [has_idle_listener(client, prefix, pools) for pools in (["default"], ["gpu"])]
    wait_until(lambda: not has_idle_listener(client, prefix, ["default"]), what="it to be gone")

    assert seen == [False, True, False]


def test_a_slot_that_lingers_hears_before_a_dispatcher(redis: EmbeddedRedis, prefix: str) -> None:
    waker = Waker(redis.url, prefix)
    dispatcher = WakeUpListener(redis.url, prefix)
    dispatcher.wait(LONG, threading.Event())
    with SlotSubscription(redis.url, prefix, "default", QUEUE) as ear:
        _words(ear, 1)

        waker.wake()

        assert ear.wait(LONG) is SlotSignal.WAKE_UP
        assert dispatcher.wait(LONG, threading.Event())
    dispatcher.close()
    waker.close()


def test_nobody_lingers_while_messages_wait(
    redis: EmbeddedRedis, client: Redis, prefix: str
) -> None:
    client.rpush(prefix + QUEUE, "a message")

    with SlotSubscription(redis.url, prefix, "default", QUEUE) as ear:
        assert ear.wait(LONG) is SlotSignal.LEAVE


def test_a_message_that_nobody_told_of_is_seen_also_between_pings(
    redis: EmbeddedRedis, client: Redis, prefix: str
) -> None:
    def pinged() -> SlotSignal:
        client.publish(prefix + SLOTS_CHANNEL, "")
        return ear.wait(LONG)

    with SlotSubscription(redis.url, prefix, "default", QUEUE) as ear:
        _words(ear, 2)
        client.rpush(prefix + QUEUE, "a message")

        wait_until(
            lambda: pinged() is SlotSignal.LEAVE, timeout=LONG, what="the message to be seen"
        )


def test_one_of_a_pool_lingers_at_a_time(redis: EmbeddedRedis, prefix: str) -> None:
    with SlotSubscription(redis.url, prefix, "default", QUEUE) as first:
        with SlotSubscription(redis.url, prefix, "default", QUEUE) as second:
            assert second.wait(LONG) is SlotSignal.LEAVE
        with SlotSubscription(redis.url, prefix, "gpu", agent_queue("gpu")) as elsewhere:
            assert elsewhere.wait(LONG) is SlotSignal.SUBSCRIBED
        assert first.wait(LONG) is SlotSignal.SUBSCRIBED


def test_without_redis_nobody_lingers() -> None:
    with SlotSubscription(NOBODY_LISTENS, "x:", "default", QUEUE) as ear:
        assert ear.wait(LONG) is SlotSignal.LEAVE


def test_a_lingering_slot_takes_what_comes_and_leaves_when_sent_off(
    deployment: Deployment, worker: resources.WorkerResources, client: Redis, ran: list[str]
) -> None:
    user = deployment.user()
    slot = _carrying_out(deployment, worker, "first")
    _lingers(worker, client)
    deployment.task(user, type="quick", title="second")
    worker.waker.wake()
    wait_until(lambda: ran == ["first", "second"], what="the second to run")
    # Not before it has settled and listens again.
    wait_until(lambda: _count(deployment, "completed") == 2, what="the second to be recorded")
    _lingers(worker, client)

    dismiss_idle_listeners(client, worker.settings.redis_key_prefix, POOL)

    slot.join(LONG)
    assert not slot.is_alive()
    history = deployment.rows(
        "SELECT e.to_state FROM events e JOIN tasks t ON t.id = e.task_id"
        " WHERE t.title = 'second' ORDER BY e.seq"
    )
    assert [row["to_state"] for row in history] == ["ready", "running", "completed"]


def test_an_invited_slot_takes_what_comes(
    deployment: Deployment, worker: resources.WorkerResources, client: Redis, ran: list[str]
) -> None:
    slot = threading.Thread(target=carry_out, args=(worker, []), daemon=True)
    slot.start()
    _lingers(worker, client)
    deployment.task(deployment.user(), type="quick", title="first")

    worker.waker.wake()

    wait_until(lambda: _count(deployment, "completed") == 1, what="the task to be recorded")
    # A slot that has not subscribed again yet would miss the dismissal.
    _lingers(worker, client)
    dismiss_idle_listeners(client, worker.settings.redis_key_prefix, POOL)
    slot.join(LONG)
    assert ran == ["first"]
    assert not slot.is_alive()


@pytest.mark.usefixtures("ran")
def test_what_comes_to_a_slot_that_lingers_lets_it_go_on(
    deployment: Deployment, worker: resources.WorkerResources, client: Redis
) -> None:
    """Also if it came later than busy slots go on after their message."""
    taking = slot_loop.SlotLoop(worker)
    taken: list[Run] = []
    slot = threading.Thread(target=lambda: taken.extend(taking.wait_for_runs()), daemon=True)
    slot.start()
    _lingers(worker, client)
    taking._continue_until = 0.0
    task_id = deployment.task(deployment.user(), type="quick")

    worker.waker.wake()

    slot.join(LONG)
    assert [run.claim.task_id for run in taken] == [task_id]
    assert taking._may_continue


@pytest.mark.usefixtures("ran")
def test_a_slot_whose_time_is_up_has_another_invited(
    deployment: Deployment,
    settings: Settings,
    worker: resources.WorkerResources,
    client: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slot_loop, "LISTEN_SECONDS", 1.0)
    queue = settings.redis_key_prefix + QUEUE
    deaf = settings.model_copy(update={"poll_interval": 2 * LONG})
    with _dispatching(deployment, deaf):
        wait_until(lambda: client.llen(queue) == 1, what="the first invitation")
        client.delete(queue)

        carry_out(worker, [])

        wait_until(lambda: client.llen(queue) == 1, timeout=LONG, what="the second invitation")


def test_idle_slots_bring_one_invitation_until_somebody_lingers(
    deployment: Deployment, settings: Settings, client: Redis
) -> None:
    queue, prefix = settings.redis_key_prefix + QUEUE, settings.redis_key_prefix
    publisher = Publisher(settings)

    def waiting_after_a_pass(settings: Settings = settings) -> int:
        fill(deployment.dispatcher, publisher, settings, holder="d")
        return client.llen(queue)

    never = settings.model_copy(update={"refill_seconds": 0.0})
    for_one_message = settings.model_copy(update={"max_tasks_per_child": 1})
    deployment.agent(slots=1)
    seen = [waiting_after_a_pass(never), waiting_after_a_pass(for_one_message)]
    seen += [waiting_after_a_pass() for _ in range(2)]
    client.delete(queue)
    with SlotSubscription(str(settings.redis_url), prefix, POOL, QUEUE):
        seen.append(waiting_after_a_pass())
    deployment.task(deployment.user())
    deployment.claim()
    seen.append(waiting_after_a_pass())
    publisher.close()

    assert seen == [0, 0, 1, 1, 0, 0]


def test_a_lingering_slot_leaves_when_the_worker_shuts_down(
    deployment: Deployment,
    worker: resources.WorkerResources,
    client: Redis,
    ran: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slot = _carrying_out(deployment, worker, "first")
    _lingers(worker, client)

    monkeypatch.setattr(type(SHUTDOWN_FLAG), "is_set", property(lambda _: True))

    slot.join(LONG)
    assert not slot.is_alive()


def test_what_is_not_quick_keeps_its_turn_and_its_message(
    deployment: Deployment,
    worker: resources.WorkerResources,
    client: Redis,
    ran: list[str],
    looks: list[int],
) -> None:
    slot = _carrying_out(deployment, worker, "first")
    _lingers(worker, client)
    user = deployment.user()
    long = deployment.task(user, type="never seen")
    behind = deployment.task(user, type="quick", title="behind")
    _have_it_look(worker, looks)

    dismiss_idle_listeners(client, worker.settings.redis_key_prefix, POOL)
    slot.join(LONG)

    assert [deployment.state(long), deployment.state(behind)] == ["ready", "ready"]
    assert ran == ["first"]


def test_what_no_worker_knows_is_left_for_the_dispatcher(
    deployment: Deployment,
    worker: resources.WorkerResources,
    client: Redis,
    ran: list[str],
    looks: list[int],
) -> None:
    """It takes only what it knows itself; what nobody knows is sent all the same, and fails."""
    slot = _carrying_out(deployment, worker, "first")
    _lingers(worker, client)
    deployment.run("UPDATE agents SET types = '{quick}'")
    unknown = deployment.task(deployment.user(), type="never seen")
    _have_it_look(worker, looks)

    claimed = [one.claim.task_id for one in deployment.claim().claims]

    dismiss_idle_listeners(client, worker.settings.redis_key_prefix, POOL)
    slot.join(LONG)
    assert claimed == [unknown]


def test_a_slot_already_promised_by_the_dispatcher_takes_nothing(
    deployment: Deployment,
    worker: resources.WorkerResources,
    client: Redis,
    ran: list[str],
    looks: list[int],
) -> None:
    slot = _carrying_out(deployment, worker, "first")
    _lingers(worker, client)
    promised = deployment.task(deployment.user(), type="never seen")
    deployment.claim()
    waiting = deployment.task(deployment.user(), type="quick", title="waiting")
    _have_it_look(worker, looks)

    dismiss_idle_listeners(client, worker.settings.redis_key_prefix, POOL)
    slot.join(LONG)

    assert [deployment.state(promised), deployment.state(waiting)] == ["claimed", "ready"]
    assert ran == ["first"]


def test_a_message_sends_lingering_slots_off(
    deployment: Deployment,
    worker: resources.WorkerResources,
    client: Redis,
    ran: list[str],
    settings: Settings,
) -> None:
    slot = _carrying_out(deployment, worker, "first")
    _lingers(worker, client)
    deployment.task(deployment.user(), type="never seen")

    with _dispatching(deployment, settings):
        slot.join(LONG)

    assert not slot.is_alive()


def test_what_a_slot_is_called_for_and_may_not_take_it_leaves_to_the_dispatchers(
    deployment: Deployment,
    worker: resources.WorkerResources,
    client: Redis,
    ran: list[str],
    looks: list[int],
) -> None:
    prefix = worker.settings.redis_key_prefix
    dispatcher = WakeUpListener(str(worker.settings.redis_url), prefix)
    slot = _carrying_out(deployment, worker, "first")
    _lingers(worker, client)
    wait_until(lambda: looks, what="its own first look")
    while dispatcher.wait(0.1, threading.Event()):
        pass  # what the first task gave rise to
    deployment.task(deployment.user(), type="never seen")

    client.publish(prefix + SLOTS_CHANNEL, "")

    assert dispatcher.wait(LONG, threading.Event())
    dismiss_idle_listeners(client, prefix, POOL)
    slot.join(LONG)
    dispatcher.close()
    assert (ran, sum(looks)) == (["first"], 0)


@contextmanager
def _dispatching(deployment: Deployment, settings: Settings) -> Iterator[None]:
    """Let a dispatcher work in a thread."""
    stop = threading.Event()
    publisher = Publisher(settings)
    listener = WakeUpListener(str(settings.redis_url), settings.redis_key_prefix)
    clerk = threading.Thread(
        target=dispatch,
        args=(deployment.dispatcher, publisher, listener, settings, stop),
        daemon=True,
    )
    clerk.start()
    try:
        yield
    finally:
        stop.set()
        clerk.join(LONG)
        listener.close()
        publisher.close()


def _words(ear: SlotSubscription, count: int) -> list[SlotSignal]:
    return [ear.wait(0.2) for _ in range(count)]


def _carrying_out(
    deployment: Deployment, worker: resources.WorkerResources, title: str
) -> threading.Thread:
    """Let a slot run one task in a thread, as after a message; it lingers afterwards."""
    deployment.task(deployment.user(), type="quick", title=title)
    [claimed] = deployment.claim().claims
    slot = threading.Thread(target=carry_out, args=(worker, [claimed.claim]), daemon=True)
    slot.start()
    return slot


def _lingers(worker: resources.WorkerResources, client: Redis) -> None:
    prefix = worker.settings.redis_key_prefix
    wait_until(lambda: has_idle_listener(client, prefix, [POOL]), what="the slot to linger")


def _count(deployment: Deployment, state: str) -> int:
    return int(deployment.one("SELECT count(*) AS n FROM tasks WHERE state = :s", s=state)["n"])


def _have_it_look(worker: resources.WorkerResources, looks: list[int]) -> None:
    before = len(looks)
    worker.waker.wake()
    wait_until(lambda: len(looks) > before, what="the slot to look")
