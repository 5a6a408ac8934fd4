"""Wake-ups: received at once with Redis, and never waited for without."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from redis import Redis

from overnight_server.local.redis import EmbeddedRedis
from overnight_server.wakeups.wake import CANCELS_CHANNEL, Waker, WakeUpListener
from tests.support.wait import wait_until

NOBODY_LISTENS = "redis://127.0.0.1:1/0"
LONG = 20.0
# Longer than a test may take: a wait that is not ended early fails the test.
FOREVER = 3600.0


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid4().hex[:8]}:"


@pytest.fixture
def waker(redis: EmbeddedRedis, prefix: str) -> Iterator[Waker]:
    waker = Waker(redis.url, prefix)
    yield waker
    waker.close()


@pytest.fixture
def listener(redis: EmbeddedRedis, prefix: str) -> Iterator[WakeUpListener]:
    """A listener that has subscribed."""
    listener = WakeUpListener(redis.url, prefix)
    assert listener.wait(LONG, threading.Event()) is True
    yield listener
    listener.close()


def test_a_wake_up_reaches_the_listener(waker: Waker, listener: WakeUpListener) -> None:
    waker.wake()

    assert listener.wait(LONG, threading.Event()) is True


def test_a_new_subscription_counts_as_a_wake_up(redis: EmbeddedRedis, prefix: str) -> None:
    """A wake-up from before the subscription may have been missed."""
    listener = WakeUpListener(redis.url, prefix)

    assert listener.wait(LONG, threading.Event()) is True
    assert listener.wait(0.1, threading.Event()) is False
    listener.close()


def test_many_wake_ups_are_received_as_one(
    redis: EmbeddedRedis, prefix: str, listener: WakeUpListener
) -> None:
    with Redis.from_url(redis.url) as client, client.pipeline(transaction=True) as at_once:
        for _ in range(20):
            at_once.publish(f"{prefix}wake", "")
        at_once.execute()

    assert listener.wait(LONG, threading.Event()) is True
    assert listener.wait(0.1, threading.Event()) is False


def test_wake_ups_of_another_deployment_on_the_same_redis_are_not_received(
    redis: EmbeddedRedis, listener: WakeUpListener
) -> None:
    with Redis.from_url(redis.url) as client:
        client.publish("another:wake", "")

    assert listener.wait(0.3, threading.Event()) is False


def test_a_stop_ends_the_wait(listener: WakeUpListener) -> None:
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()

    assert listener.wait(FOREVER, stop) is False


def test_without_redis_a_listener_waits_for_a_poll() -> None:
    listener = WakeUpListener(NOBODY_LISTENS)

    assert listener.wait(1.0, threading.Event()) is False
    listener.close()


def test_with_a_hung_redis_a_listener_does_not_hang(redis: EmbeddedRedis, prefix: str) -> None:
    listener = WakeUpListener(redis.url, prefix)

    with _hung(redis):
        listener.wait(1.0, threading.Event())
    listener.close()


def test_a_listener_subscribes_again_once_redis_is_back(redis: EmbeddedRedis, prefix: str) -> None:
    listener = WakeUpListener(redis.url, prefix)
    with _hung(redis):
        listener.wait(0.1, threading.Event())

    woken = wait_until(lambda: listener.wait(1.0, threading.Event()), what="the subscription")

    assert woken is True
    listener.close()


def test_a_wake_up_without_redis_raises_nothing() -> None:
    waker = Waker(NOBODY_LISTENS)

    for _ in range(1000):
        waker.wake()
    waker.close()


def test_a_wake_up_never_waits_for_a_redis_that_hangs(redis: EmbeddedRedis, waker: Waker) -> None:
    """A thousand calls that each waited for a timeout would take longer than a test may."""
    with _hung(redis):
        for _ in range(1000):
            waker.wake()


def test_a_wake_up_on_a_closed_connection_is_received_all_the_same(
    redis: EmbeddedRedis, waker: Waker, listener: WakeUpListener
) -> None:
    waker.wake()
    assert listener.wait(LONG, threading.Event()) is True
    with Redis.from_url(redis.url) as client:
        # The listener's connection is of another type.
        assert client.client_kill_filter(_type="normal", skipme=True)

    waker.wake()

    assert listener.wait(LONG, threading.Event()) is True


def test_a_cancel_on_a_closed_connection_is_received_all_the_same(
    redis: EmbeddedRedis, prefix: str, waker: Waker, listener: WakeUpListener
) -> None:
    runs = WakeUpListener(redis.url, prefix, CANCELS_CHANNEL)
    assert runs.wait(LONG, threading.Event()) is True
    waker.wake()
    assert listener.wait(LONG, threading.Event()) is True
    with Redis.from_url(redis.url) as client:
        assert client.client_kill_filter(_type="normal", skipme=True)

    waker.cancel_requested()

    assert runs.wait(LONG, threading.Event()) is True
    runs.close()


def test_a_thousand_wake_ups_become_a_few_messages(
    redis: EmbeddedRedis, prefix: str, waker: Waker
) -> None:
    with Redis.from_url(redis.url) as client, client.pubsub() as subscription:
        subscription.subscribe(f"{prefix}wake")
        subscription.get_message(timeout=5)
        with _hung(redis):
            for _ in range(1000):
                waker.wake()
        messages = int(subscription.get_message(timeout=LONG) is not None)
        while subscription.get_message(timeout=0.5) is not None:
            messages += 1

    assert 1 <= messages <= 10


def test_a_closed_waker_leaves_no_thread(redis: EmbeddedRedis, prefix: str) -> None:
    before = set(threading.enumerate())
    waker = Waker(redis.url, prefix)
    waker.wake()
    assert set(threading.enumerate()) - before

    waker.close()

    wait_until(lambda: not set(threading.enumerate()) - before, what="the thread to end")


def test_a_cancel_wakes_running_workers_and_not_the_dispatcher(
    redis: EmbeddedRedis, prefix: str, waker: Waker, listener: WakeUpListener
) -> None:
    stop = threading.Event()
    runs = WakeUpListener(redis.url, prefix, CANCELS_CHANNEL)
    assert runs.wait(LONG, stop)  # the new subscription

    waker.cancel_requested()

    assert runs.wait(LONG, stop)
    assert not listener.wait(0.5, stop)
    runs.close()


@contextmanager
def _hung(redis: EmbeddedRedis) -> Iterator[None]:
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(redis.pid, signal.SIGCONT)
