"""Best-effort wake-ups over Redis publish/subscribe, which never make their caller wait.

Channels: idle slots of workers, dispatchers, worker processes that are running a task, and one for
each task's log, which says only that the log has grown.
Idle slots can start a task sooner than a Celery message could, so they are woken before the
dispatchers. While Redis is down, wake-ups are lost; each costs at most one poll interval, or for a
cancel one heartbeat interval.
"""

import os
import threading
import time
from collections.abc import Collection

import redis
from redis import Connection
from redis.client import PubSub

from overnight_server.domain.ids import TaskId
from overnight_server.fault_points import fault
from overnight_server.telemetry import LogEvent, emit
from overnight_server.wakeups.redis_client import fail_fast_client

DISPATCHERS_CHANNEL = "wake"
SLOTS_CHANNEL = "wake:slots"
CANCELS_CHANNEL = "wake:cancels"
# Followed by the id of a task.
LOG_CHANNELS = "wake:log:"
# If a slot listens, dispatchers are woken this many seconds after the idle slots.
HEAD_START_SECONDS = 0.005
# A listener checks this often whether it should stop: soon after Ctrl-C, and idle in between.
STOP_CHECK_SECONDS = 0.5


class Waker:
    """Publishes wake-ups; calls that come while one is being published become one more.

    `wake` publishes to the slot channel from the calling thread, because the start of a task
    waits for it. A background thread does the rest: it opens the connection, reads how many slots
    received the message, and publishes to the other channels.
    """

    def __init__(self, redis_url: str, prefix: str = "overnight:") -> None:
        self._url = redis_url
        self._prefix = prefix
        self._requested = threading.Event()
        self._dispatch_requested = self._cancel_requested = False
        self._grown_logs: set[TaskId] = set()
        self._starting = threading.Lock()
        # Held while the connection is in use; by the thread until it has read all replies.
        self._using_connection = threading.Lock()
        # Set only while Redis is known to answer on this connection.
        self._connection: Connection | None = None
        # A slot message whose reply is unread; and whether another slot message must follow it.
        self._slots_reply_pending = self._slots_message_needed = False
        self._pid: int | None = None
        self._closed = False

    def wake(self) -> None:
        """Wake idle slots and dispatchers, because a task may have become startable."""
        fault("wake.before_publish")
        if self._pid == os.getpid():
            self._publish_to_slots_at_once()
        self._dispatch_requested = True
        self._request()

    def cancel_requested(self) -> None:
        """Have every process that runs a task send its heartbeat now, and so read the cancel."""
        self._cancel_requested = True
        self._request()

    def log_grew(self, tasks: Collection[TaskId]) -> None:
        """Wake those who follow the logs of these tasks."""
        if tasks:
            self._grown_logs = self._grown_logs | set(tasks)
            self._request()

    def close(self) -> None:
        """End the thread; a wake-up that was requested just before may be lost."""
        self._closed = True
        self._requested.set()

    def _request(self) -> None:
        self._requested.set()
        # Neither threads nor connections survive a fork: each process has its own.
        if self._pid != os.getpid():
            with self._starting:
                if self._pid != os.getpid():
                    self._using_connection = threading.Lock()
                    self._connection, self._slots_reply_pending = None, False
                    self._pid = os.getpid()
                    threading.Thread(target=self._publish_on_request, daemon=True).start()

    def _publish_to_slots_at_once(self) -> None:
        """Publish to the slots now, or leave it to the thread if this would have to wait."""
        if not self._using_connection.acquire(blocking=False):
            self._slots_message_needed = True
            return
        try:
            if self._connection is None or self._slots_reply_pending:
                self._slots_message_needed = True
            else:
                self._connection.send_command("PUBLISH", self._prefix + SLOTS_CHANNEL, "")
                self._slots_reply_pending = True
        except redis.RedisError:
            # Drop the connection: the driver would reconnect during the next command, and the
            # caller of `wake` would have to wait.
            self._connection, self._slots_message_needed = None, True
        finally:
            self._using_connection.release()

    def _publish_on_request(self) -> None:
        client = fail_fast_client(self._url)
        connection: Connection | None = None
        while True:
            self._requested.wait()
            if self._closed:
                client.close()
                return
            with self._using_connection:
                self._requested.clear()
                try:
                    connection = connection or client.connection_pool.get_connection()
                    self._publish_requested(connection)
                    self._connection = connection
                except redis.RedisError as error:
                    self._connection = None
                    if connection is not None:
                        connection.disconnect()
                    emit(LogEvent.WAKE_UP_FAILED, error=str(error))

    def _publish_requested(self, connection: Connection) -> None:
        cancel, self._cancel_requested = self._cancel_requested, False
        dispatch, self._dispatch_requested = self._dispatch_requested, False
        grown, self._grown_logs = self._grown_logs, set()
        # The reply to a message that `wake` sent must be read before anything else is.
        if dispatch or self._slots_reply_pending:
            if self._publish_to_slots(connection):
                time.sleep(HEAD_START_SECONDS)
            _publish(connection, self._prefix + DISPATCHERS_CHANNEL)
        if cancel:
            _publish(connection, self._prefix + CANCELS_CHANNEL)
        for task_id in grown:
            _publish(connection, log_channel(self._prefix, task_id))

    def _publish_to_slots(self, connection: Connection) -> int:
        """Return how many slots the message reached; publish it unless the caller has done so."""
        reply_pending, self._slots_reply_pending = self._slots_reply_pending, False
        message_needed, self._slots_message_needed = self._slots_message_needed, False
        if reply_pending:
            try:
                receivers = int(connection.read_response())
            except redis.ConnectionError:  # the connection may have been closed long ago
                connection.disconnect()
            else:
                if not message_needed:
                    return receivers
        return _publish(connection, self._prefix + SLOTS_CHANNEL)


def log_channel(prefix: str, task_id: TaskId) -> str:
    """Return the channel on which the growth of a task's log is announced."""
    return f"{prefix}{LOG_CHANNELS}{task_id}"


def _publish(connection: Connection, channel: str) -> int:
    """Publish a message and return how many received it.

    It is tried a second time, because Redis may have closed the connection since its last use.
    """
    try:
        return _publish_once(connection, channel)
    except redis.ConnectionError:
        connection.disconnect()
        return _publish_once(connection, channel)


def _publish_once(connection: Connection, channel: str) -> int:
    connection.send_command("PUBLISH", channel, "")
    return int(connection.read_response())


class WakeUpListener:
    """Waits for wake-ups on one channel; while Redis is down, `wait` only lets the time pass."""

    def __init__(
        self, redis_url: str, prefix: str = "overnight:", channel: str = DISPATCHERS_CHANNEL
    ) -> None:
        self._client = fail_fast_client(redis_url)
        self._channel = prefix + channel
        self._subscription: PubSub | None = None

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Return True at a wake-up, False when `seconds` have passed or `stop` is set.

        A new subscription returns True at once, because an earlier wake-up may have been missed.
        """
        deadline = time.monotonic() + seconds
        while not stop.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            try:
                if self._receive(min(left, STOP_CHECK_SECONDS)):
                    return True
            except redis.RedisError as error:
                emit(LogEvent.WAKE_UP_FAILED, error=str(error))
                self._unsubscribe()
                stop.wait(min(left, STOP_CHECK_SECONDS))
        return False

    def close(self) -> None:
        """Close the connection."""
        self._unsubscribe()
        self._client.close()

    def _receive(self, seconds: float) -> bool:
        if self._subscription is None:
            subscription = self._client.pubsub(ignore_subscribe_messages=True)
            subscription.subscribe(self._channel)
            self._subscription = subscription
            return True
        received = self._subscription.get_message(timeout=seconds) is not None
        while received and self._subscription.get_message(timeout=0) is not None:
            pass  # several wake-ups need only one reaction
        return received

    def _unsubscribe(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None
