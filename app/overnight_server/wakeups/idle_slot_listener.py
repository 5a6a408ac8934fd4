"""Idle listeners: one free slot of a pool subscribes to wake-ups and claims the next task itself.

A task that an idle listener claims needs no dispatcher and no Celery message. Wake-ups reach
the idle listener before they reach the dispatchers. An idle listener also subscribes to a channel
of its pool. The number of subscribers shows the dispatchers whether the pool has an idle listener,
and a message on it ends the listening, because a Celery message may need the slot's process. A
slot does not listen while Celery messages wait in the queue. A pool needs only one idle listener:
a second one would wake up for the same task. If an idle listener is woken and may not claim the
task, it wakes the dispatchers at once.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Self

import redis

from overnight_server.wakeups.redis_client import TIMEOUT_SECONDS, fail_fast_client
from overnight_server.wakeups.wake import DISPATCHERS_CHANNEL, SLOTS_CHANNEL

# The queue is checked this often, in case the message that ends the listening was lost.
QUEUE_CHECK_SECONDS = 0.5


class SlotSignal(Enum):
    """What an idle listener should do next."""

    NOTHING = "nothing"
    # The subscription is new, so an earlier wake-up may have been missed: try to claim.
    SUBSCRIBED = "subscribed"
    WAKE_UP = "wake_up"
    LEAVE = "leave"


class SlotSubscription:
    """The subscription of one idle slot, used as a context; without Redis it signals `LEAVE`."""

    def __init__(self, redis_url: str, prefix: str, pool: str, queue: str) -> None:
        self._signals = {
            prefix + SLOTS_CHANNEL: SlotSignal.WAKE_UP,
            _channel(prefix, pool): SlotSignal.LEAVE,
        }
        self._prefix = prefix
        self._pool = pool
        self._queue = prefix + queue
        self._redis = fail_fast_client(redis_url)
        self._subscription = self._redis.pubsub()
        self._signal = SlotSignal.SUBSCRIBED
        self._queue_checked_at = 0.0

    def __enter__(self) -> Self:
        self._signal = SlotSignal.LEAVE
        try:
            if not has_idle_listener(self._redis, self._prefix, [self._pool]):
                self._subscribe()
                if not self._has_message_in_queue():
                    self._signal = SlotSignal.SUBSCRIBED
        except redis.RedisError:
            # A confirmation that arrives late must not be counted for the next subscription.
            self._subscription.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Unsubscribe: wake-ups that nobody reads would pile up in Redis."""
        try:
            self._subscription.unsubscribe()
        except redis.RedisError:
            self._subscription.close()

    def wait(self, seconds: float) -> SlotSignal:
        """Return the next signal, `NOTHING` after `seconds`; of several signals `LEAVE` wins.

        The message that means `LEAVE` may be lost, so the queue itself is checked now and then.
        """
        signal, self._signal = self._signal, SlotSignal.NOTHING
        until = time.monotonic() + seconds
        while signal is not SlotSignal.LEAVE:
            # After a first signal, only messages that have arrived already are read.
            left = until - time.monotonic() if signal is SlotSignal.NOTHING else 0.0
            try:
                is_check_due = time.monotonic() - self._queue_checked_at > QUEUE_CHECK_SECONDS
                if is_check_due and self._has_message_in_queue():
                    return SlotSignal.LEAVE
                message = self._subscription.get_message(timeout=max(0.0, left))
            except redis.RedisError:
                self._subscription.close()
                return SlotSignal.LEAVE
            if message is None:
                break
            if message["type"] == "message":
                signal = self._signals[message["channel"].decode()]
        return signal

    def _subscribe(self) -> None:
        """Subscribe and wait for the confirmations; skip messages of an earlier one."""
        self._subscription.subscribe(*self._signals)
        confirmed = 0
        while confirmed < len(self._signals):
            message = self._subscription.get_message(timeout=TIMEOUT_SECONDS)
            if message is None:
                raise redis.TimeoutError("Redis did not confirm a subscription")
            confirmed += message["type"] == "subscribe"

    def wake_dispatchers(self) -> None:
        """Wake the dispatchers now, before their own wake-up reaches them; best effort."""
        with suppress(redis.RedisError):
            self._redis.publish(self._prefix + DISPATCHERS_CHANNEL, "")

    def _has_message_in_queue(self) -> bool:
        """Whether a Celery message waits for a worker of the pool."""
        self._queue_checked_at = time.monotonic()
        return bool(self._redis.llen(self._queue))


def has_idle_listener(client: redis.Redis, prefix: str, pools: Iterable[str]) -> bool:
    """Whether any of these pools has an idle listener."""
    counts = client.pubsub_numsub(*(_channel(prefix, pool) for pool in pools))
    return any(subscribers for _, subscribers in counts)


def needs_idle_listener(client: redis.Redis, prefix: str, pool: str, queue: str) -> bool:
    """Whether the pool has no idle listener and no message in its queue."""
    with client.pipeline(transaction=False) as pipeline:
        pipeline.pubsub_numsub(_channel(prefix, pool))
        pipeline.llen(prefix + queue)
        [(_, subscribers)], messages = pipeline.execute()
    return not (subscribers or messages)


def dismiss_idle_listeners(client: redis.Redis, prefix: str, pool: str) -> None:
    """End the listening of a pool's idle slots; if the message is lost, they notice it later."""
    client.publish(_channel(prefix, pool), "")


def _channel(prefix: str, pool: str) -> str:
    return f"{prefix}idle:{pool}"
