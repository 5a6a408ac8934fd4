"""Slots that linger: one free slot of a pool listens, so that the next quick task needs no message.

A lingering slot hears the pings that wake the dispatcher, and before it. It also listens on a
channel of its pool: there others see that somebody is waiting, and the dispatcher sends everybody
off when it sends a message, which one of their processes may have to take. While messages wait in
the queue, nobody lingers; and one of a pool is enough: more would wake up for the same task. What
a slot is called for and may not take it leaves to the dispatchers, and tells them at once.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Self

import redis

from overnight_server.wakeups.redis_client import TIMEOUT_SECONDS, fail_fast_client
from overnight_server.wakeups.wake import CHANNEL, SLOTS_CHANNEL

# How often a slot asks for messages that wait, in case nobody sent it off.
ASK_SECONDS = 0.5


class Heard(Enum):
    """What a lingering slot was told."""

    NOTHING = "nothing"
    # It has just begun to listen, and may have missed a call.
    LOOK = "look"
    CALL = "call"
    LEAVE = "leave"


class SlotSubscription:
    """One slot's ear: open while it lingers, used as a context; without Redis it hears `LEAVE`."""

    def __init__(self, redis_url: str, prefix: str, pool: str, queue: str) -> None:
        self._channels = {prefix + SLOTS_CHANNEL: Heard.CALL, _channel(prefix, pool): Heard.LEAVE}
        self._prefix = prefix
        self._pool = pool
        self._queue = prefix + queue
        self._redis = fail_fast_client(redis_url)
        self._subscription = self._redis.pubsub()
        self._news = Heard.LOOK
        self._asked = 0.0

    def __enter__(self) -> Self:
        self._news = Heard.LEAVE
        try:
            if not has_idle_listener(self._redis, self._prefix, [self._pool]):
                self._listen()
                if not self._has_mail():
                    # Whatever was said before the ear was open may have been for us.
                    self._news = Heard.LOOK
        except redis.RedisError:
            # What is confirmed too late must not count for the next time.
            self._subscription.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop listening: pings that nobody takes in would pile up in Redis."""
        try:
            self._subscription.unsubscribe()
        except redis.RedisError:
            self._subscription.close()

    def wait(self, seconds: float) -> Heard:
        """Wait so long for a word; of several, the one that sends the slot off counts.

        That word may be lost, so now and then the queue itself is asked.
        """
        news, self._news = self._news, Heard.NOTHING
        until = time.monotonic() + seconds
        while news is not Heard.LEAVE:
            # Once something is heard, only what has come with it is taken in.
            left = until - time.monotonic() if news is Heard.NOTHING else 0.0
            try:
                if time.monotonic() - self._asked > ASK_SECONDS and self._has_mail():
                    return Heard.LEAVE
                message = self._subscription.get_message(timeout=max(0.0, left))
            except redis.RedisError:
                self._subscription.close()
                return Heard.LEAVE
            if message is None:
                break
            if message["type"] == "message":
                news = self._channels[message["channel"].decode()]
        return news

    def _listen(self) -> None:
        """Subscribe, and hear that it counts; what was left from the last time is gone by."""
        self._subscription.subscribe(*self._channels)
        confirmed = 0
        while confirmed < len(self._channels):
            message = self._subscription.get_message(timeout=TIMEOUT_SECONDS)
            if message is None:
                raise redis.TimeoutError("nobody confirmed a subscription")
            confirmed += message["type"] == "subscribe"

    def pass_on(self) -> None:
        """Tell the dispatchers what others would tell them later; a lost word is no loss."""
        with suppress(redis.RedisError):
            self._redis.publish(self._prefix + CHANNEL, "")

    def _has_mail(self) -> bool:
        """Whether a message waits in the queue."""
        self._asked = time.monotonic()
        return bool(self._redis.llen(self._queue))


def has_idle_listener(client: redis.Redis, prefix: str, pools: Iterable[str]) -> bool:
    """Whether a slot of any of these pools is waiting for work right now."""
    counted = client.pubsub_numsub(*(_channel(prefix, pool) for pool in pools))
    return any(listeners for _, listeners in counted)


def needs_idle_listener(client: redis.Redis, prefix: str, pool: str, queue: str) -> bool:
    """Whether a slot of this pool should linger: nobody does, and no message waits to be taken."""
    with client.pipeline(transaction=False) as trip:
        trip.pubsub_numsub(_channel(prefix, pool))
        trip.llen(prefix + queue)
        [(_, listeners)], waiting = trip.execute()
    return not (listeners or waiting)


def dismiss_idle_listeners(client: redis.Redis, prefix: str, pool: str) -> None:
    """Have every lingering slot of a pool leave; a lost word only makes them leave later."""
    client.publish(_channel(prefix, pool), "")


def _channel(prefix: str, pool: str) -> str:
    return f"{prefix}linger:{pool}"
