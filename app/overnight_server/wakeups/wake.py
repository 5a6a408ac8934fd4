"""Wake-up calls: a best-effort ping to whoever may start a task, that never makes anyone wait.

Slots that linger take a task sooner than a message could bring it, so they hear of it first, and
the dispatchers, if there are such slots, a moment later, or from a slot that looked in vain. A lost
ping costs at most one poll interval, so nothing here is retried.
"""

import os
import threading
import time

import redis
from redis import Connection
from redis.client import PubSub

from overnight_server.fault_points import fault
from overnight_server.telemetry import Event, emit
from overnight_server.wakeups.redis_client import fail_fast_client

CHANNEL = "wake"
SLOTS_CHANNEL = "wake:slots"
HEAD_START_SECONDS = 0.005
# How long a listener may be deaf to a stop; short enough for Ctrl-C, long enough to be idle.
SLICE_SECONDS = 0.5


class Waker:
    """Pings without waiting for an answer; many nudges while one ping travels become one more.

    Whoever nudges says the first word, to the slots, for that is what a task's start waits for. A
    background thread hears how many there were, tells the dispatchers, and sees to the connection.
    """

    def __init__(self, redis_url: str, prefix: str = "overnight:") -> None:
        self._url = redis_url
        self._channel = prefix + CHANNEL
        self._slots_channel = prefix + SLOTS_CHANNEL
        self._wanted = threading.Event()
        self._starting = threading.Lock()
        # Held by whoever talks to Redis; the thread keeps it until it has heard all answers.
        self._talking = threading.Lock()
        # One on which Redis answered the last time.
        self._line: Connection | None = None
        self._has_said = self._has_more_to_say = False
        self._pid: int | None = None
        self._closed = False

    def wake(self) -> None:
        """Ask for a ping and return at once."""
        fault("wake.before_ping")
        # Neither threads nor connections survive a fork: each process has its own.
        if self._pid == os.getpid():
            self._say_it_now()
        self._wanted.set()
        if self._pid != os.getpid():
            with self._starting:
                if self._pid != os.getpid():
                    self._talking, self._line, self._has_said = threading.Lock(), None, False
                    self._pid = os.getpid()
                    threading.Thread(target=self._ping_on_demand, daemon=True).start()

    def close(self) -> None:
        """End the thread; a ping still wanted may be lost."""
        self._closed = True
        self._wanted.set()

    def _say_it_now(self) -> None:
        """Say the word to the slots, or have it said if that would have to wait for something."""
        if not self._talking.acquire(blocking=False):
            self._has_more_to_say = True
            return
        try:
            if self._line is None or self._has_said:
                self._has_more_to_say = True
            else:
                self._line.send_command("PUBLISH", self._slots_channel, "")
                self._has_said = True
        except redis.RedisError:
            # The driver would connect at the next word, and let whoever says it wait.
            self._line, self._has_more_to_say = None, True
        finally:
            self._talking.release()

    def _ping_on_demand(self) -> None:
        client = fail_fast_client(self._url)
        line: Connection | None = None
        while True:
            self._wanted.wait()
            if self._closed:
                client.close()
                return
            with self._talking:
                self._wanted.clear()
                try:
                    line = line or client.connection_pool.get_connection()
                    if self._tell_slots(line):
                        time.sleep(HEAD_START_SECONDS)
                    _publish(line, self._channel)
                    self._line = line
                except redis.RedisError as error:
                    self._line = None
                    if line is not None:
                        line.disconnect()
                    emit(Event.WAKE_UP_FAILED, error=str(error))

    def _tell_slots(self, line: Connection) -> int:
        """Hear how many slots listen, and tell them what nobody has told them yet."""
        has_said, self._has_said = self._has_said, False
        has_more, self._has_more_to_say = self._has_more_to_say, False
        if has_said:
            try:
                listeners = int(line.read_response())
            except redis.ConnectionError:  # it may have been gone for long
                line.disconnect()
            else:
                if not has_more:
                    return listeners
        return _publish(line, self._slots_channel)


def _publish(line: Connection, channel: str) -> int:
    line.send_command("PUBLISH", channel, "")
    return int(line.read_response())


class Listener:
    """Waits for a ping; without Redis it waits just as long and finds the work by polling."""

    def __init__(self, redis_url: str, prefix: str = "overnight:") -> None:
        self._client = fail_fast_client(redis_url)
        self._channel = prefix + CHANNEL
        self._subscription: PubSub | None = None

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Return True at a ping, False when `seconds` have passed or `stop` is set."""
        deadline = time.monotonic() + seconds
        while not stop.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            try:
                if self._heard(min(left, SLICE_SECONDS)):
                    return True
            except redis.RedisError as error:
                emit(Event.WAKE_UP_FAILED, error=str(error))
                self._forget()
                stop.wait(min(left, SLICE_SECONDS))
        return False

    def close(self) -> None:
        """Let go of the connection."""
        self._forget()
        self._client.close()

    def _heard(self, seconds: float) -> bool:
        if self._subscription is None:
            subscription = self._client.pubsub(ignore_subscribe_messages=True)
            subscription.subscribe(self._channel)
            self._subscription = subscription
            # Whatever was said before the ear was open may have been for us.
            return True
        heard = self._subscription.get_message(timeout=seconds) is not None
        while heard and self._subscription.get_message(timeout=0) is not None:
            pass  # one look answers them all
        return heard

    def _forget(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None
