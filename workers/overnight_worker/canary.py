"""Notices that a worker no longer reads its messages: it sends messages to itself and misses them.

A worker whose subscription is lost still sends heartbeats and has free slots, so tasks are claimed
for it, which it never starts. Each heartbeat puts a message into a queue that only this worker
reads, with the same connection as the queue of its pool. The worker is deaf if the message is still
in the queue at the next checks. Celery reads no queue while all slots are busy, so a busy worker is
not judged; nor is any worker while Redis does not answer or is full.
"""

import time
from typing import Final

import redis
from celery.worker import state
from kombu import Queue

from overnight_server.dispatch.celery_settings import DIRECT, OWN_QUEUES
from overnight_server.settings import Settings
from overnight_server.wakeups.redis_client import fail_fast_client
from overnight_worker.identity import WORKER_ID

CANARY_QUEUE: Final = f"{OWN_QUEUES}{WORKER_ID}"
# Checks in a row that find the message unread, and for how long at least: Celery may be connecting
# to Redis again, or wait for a processor.
CHECKS_UNTIL_DEAF: Final = 3
SECONDS_UNTIL_DEAF: Final = 15.0
# A worker that was killed leaves its queue behind for this long.
EXPIRY_SECONDS: Final = 120


def canary_queue() -> Queue:
    """Return the queue that only this worker reads."""
    return Queue(CANARY_QUEUE, exchange=DIRECT, routing_key=CANARY_QUEUE)


class Canary:
    """The messages of a worker to itself; `is_deaf` once it has missed one."""

    def __init__(self, settings: Settings) -> None:
        self._url = str(settings.redis_url)
        self._key = settings.redis_key_prefix + CANARY_QUEUE
        self._is_waiting = False
        self._unread_checks = 0
        self._unread_since = 0.0
        self.is_deaf = False

    def on_read(self) -> None:
        """Note that the worker has read its message."""
        self._is_waiting = False

    def check(self, *, slots: int) -> None:
        """Send a message, or see whether the last one was read; the caller sets the intervals."""
        now = time.monotonic()
        if not self._is_waiting or len(state.reserved_requests) >= slots:
            self._unread_checks, self._unread_since = 0, now
        try:
            with fail_fast_client(self._url) as client:
                if self._is_waiting and client.llen(self._key):
                    self._unread_checks += len(state.reserved_requests) < slots
                else:
                    self._send(client)
        except redis.RedisError:
            self._unread_checks, self._unread_since = 0, now
        self.is_deaf = (
            self._unread_checks >= CHECKS_UNTIL_DEAF
            and now - self._unread_since >= SECONDS_UNTIL_DEAF
        )

    def _send(self, client: redis.Redis) -> None:
        # Also if the message was lost, as after a FLUSHALL.
        self._is_waiting, self._unread_checks = True, 0
        self._unread_since = time.monotonic()
        with client.pipeline(transaction=False) as pipeline:
            pipeline.lpush(self._key, "0")
            pipeline.expire(self._key, EXPIRY_SECONDS)
            pipeline.execute()
