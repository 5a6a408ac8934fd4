"""The subscription of an idle slot: its signals, on an in-memory Redis."""

from collections.abc import Callable, Iterator

import pytest
from fakeredis import FakeRedis, FakeServer

from overnight_server.dispatch.celery_settings import agent_queue
from overnight_server.wakeups import idle_slot_listener
from overnight_server.wakeups.idle_slot_listener import (
    SlotSignal,
    SlotSubscription,
    dismiss_idle_listeners,
    has_idle_listener,
    needs_idle_listener,
)
from overnight_server.wakeups.wake import SLOTS_CHANNEL

LONG = 60.0
PREFIX = "test:"
QUEUE = agent_queue("default")
Subscribe = Callable[[str], SlotSubscription]


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def client(server: FakeServer) -> Iterator[FakeRedis]:
    with FakeRedis(server=server) as client:
        yield client


@pytest.fixture
def subscription_of(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Subscribe:
    monkeypatch.setattr(idle_slot_listener, "fail_fast_client", lambda *_: FakeRedis(server=server))
    return lambda pool: SlotSubscription("redis://unused", PREFIX, pool, agent_queue(pool))


def test_a_new_subscription_signals_once(subscription_of: Subscribe) -> None:
    """A wake-up from before the subscription may have been missed."""
    with subscription_of("default") as subscription:
        assert _signals(subscription) == [SlotSignal.SUBSCRIBED, SlotSignal.NOTHING]


def test_a_subscription_drops_messages_it_did_not_read_before_it_ended(
    subscription_of: Subscribe, client: FakeRedis
) -> None:
    subscription = subscription_of("default")
    with subscription:
        dismiss_idle_listeners(client, PREFIX, "default")
        client.publish(PREFIX + SLOTS_CHANNEL, "")

    with subscription:
        assert _signals(subscription) == [SlotSignal.SUBSCRIBED, SlotSignal.NOTHING]


def test_a_subscription_receives_wake_ups_and_the_dismissals_of_its_own_pool(
    subscription_of: Subscribe, client: FakeRedis
) -> None:
    with subscription_of("default") as subscription:
        _signals(subscription)
        dismiss_idle_listeners(client, PREFIX, "gpu")
        client.publish(PREFIX + SLOTS_CHANNEL, "")
        assert subscription.wait(LONG) is SlotSignal.WAKE_UP
        client.publish(PREFIX + SLOTS_CHANNEL, "")
        dismiss_idle_listeners(client, PREFIX, "default")

        assert subscription.wait(LONG) is SlotSignal.LEAVE


def test_the_dispatcher_sees_whether_a_pool_has_an_idle_listener(
    subscription_of: Subscribe, client: FakeRedis
) -> None:
    answers = [has_idle_listener(client, PREFIX, ["default"])]
    with subscription_of("default"):
        answers += [has_idle_listener(client, PREFIX, pools) for pools in (["default"], ["gpu"])]
    answers.append(has_idle_listener(client, PREFIX, ["default"]))

    assert answers == [False, True, False, False]


def test_a_pool_needs_an_idle_listener_if_it_has_none_and_no_message(
    subscription_of: Subscribe, client: FakeRedis
) -> None:
    answers = [needs_idle_listener(client, PREFIX, "default", QUEUE)]
    with subscription_of("default"):
        answers.append(needs_idle_listener(client, PREFIX, "default", QUEUE))
    client.rpush(PREFIX + QUEUE, "a message")
    answers.append(needs_idle_listener(client, PREFIX, "default", QUEUE))

    assert answers == [True, False, False]


def test_no_slot_listens_while_messages_wait_in_the_queue(
    subscription_of: Subscribe, client: FakeRedis
) -> None:
    client.rpush(PREFIX + QUEUE, "a message")

    with subscription_of("default") as subscription:
        assert subscription.wait(LONG) is SlotSignal.LEAVE


def test_a_message_is_noticed_although_the_dismissal_was_lost(
    subscription_of: Subscribe, client: FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_slot_listener, "QUEUE_CHECK_SECONDS", 0.0)
    with subscription_of("default") as subscription:
        _signals(subscription)
        client.rpush(PREFIX + QUEUE, "a message")
        client.publish(PREFIX + SLOTS_CHANNEL, "")

        assert subscription.wait(LONG) is SlotSignal.LEAVE


def test_a_pool_has_one_idle_listener_at_a_time(subscription_of: Subscribe) -> None:
    with subscription_of("default") as first:
        with subscription_of("default") as second:
            assert second.wait(LONG) is SlotSignal.LEAVE
        with subscription_of("gpu") as elsewhere:
            assert elsewhere.wait(LONG) is SlotSignal.SUBSCRIBED
        assert first.wait(LONG) is SlotSignal.SUBSCRIBED


def test_a_slot_stops_listening_when_redis_goes_away(
    subscription_of: Subscribe, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_slot_listener, "QUEUE_CHECK_SECONDS", 0.0)
    with subscription_of("default") as subscription:
        _signals(subscription)
        server.connected = False

        assert subscription.wait(LONG) is SlotSignal.LEAVE


def test_without_redis_no_slot_listens(subscription_of: Subscribe, server: FakeServer) -> None:
    server.connected = False

    with subscription_of("default") as subscription:
        assert subscription.wait(LONG) is SlotSignal.LEAVE


def _signals(subscription: SlotSubscription) -> list[SlotSignal]:
    """Read the first two signals."""
    return [subscription.wait(0.05) for _ in range(2)]
