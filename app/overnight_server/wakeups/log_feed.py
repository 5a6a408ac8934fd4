"""Wakes those who follow the log of a task when it has grown.

While any log is followed, one asyncio task listens on Redis for all of them. The messages have no
content. A lost one costs nothing but time: followers also look by themselves.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import redis
import redis.asyncio
from redis.asyncio.client import PubSub

from overnight.errors import TooManyStreams
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.telemetry import LogEvent, emit
from overnight_server.wakeups.wake import log_channel

# How soon a newly followed log is subscribed to.
TURN_SECONDS = 0.1
RETRY_SECONDS = 1.0
CONNECT_SECONDS = 2.0


class LogFollower:
    """One open stream of a task's log."""

    def __init__(self, user_id: UserId, task_id: TaskId) -> None:
        self.user_id = user_id
        self.task_id = task_id
        self._woken = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait until the log may have grown, or until the time has passed."""
        try:
            await asyncio.wait_for(self._woken.wait(), seconds)
        except TimeoutError:
            return
        self._woken.clear()

    def wake(self) -> None:
        """Wake the follower."""
        self._woken.set()


class LogFeed:
    """The followers of this process, and the asyncio task that listens for them."""

    def __init__(self, redis_url: str | None, prefix: str, *, per_user: int) -> None:
        self._url = redis_url
        self._prefix = prefix
        self._per_user = per_user
        self._followers: set[LogFollower] = set()
        self._listening: asyncio.Task[None] | None = None
        self.is_closed = False

    @contextmanager
    def follow(self, user_id: UserId, task_id: TaskId) -> Iterator[LogFollower]:
        """Follow the log of a task while the context is open.

        Raises TooManyStreams if the user follows too many logs already.
        """
        if sum(other.user_id == user_id for other in self._followers) >= self._per_user:
            raise TooManyStreams(self._per_user)
        follower = LogFollower(user_id, task_id)
        self._followers.add(follower)
        if self._url is not None and (self._listening is None or self._listening.done()):
            self._listening = asyncio.create_task(self._listen(self._url))
        try:
            yield follower
        finally:
            self._followers.discard(follower)

    def close(self) -> None:
        """Wake all followers, so that the process can stop without waiting for them."""
        self.is_closed = True
        self._wake(self._followers)

    async def _listen(self, url: str) -> None:
        while self._followers and not self.is_closed:
            client = redis.asyncio.Redis.from_url(url, socket_connect_timeout=CONNECT_SECONDS)
            try:
                async with client, client.pubsub(ignore_subscribe_messages=True) as subscription:
                    await self._receive(subscription)
            except (redis.RedisError, OSError) as error:
                emit(LogEvent.WAKE_UP_FAILED, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _receive(self, subscription: PubSub) -> None:
        subscribed: set[str] = set()
        while self._followers and not self.is_closed:
            wanted = {log_channel(self._prefix, each.task_id) for each in self._followers}
            if new := wanted - subscribed:
                await subscription.subscribe(*new)
                # The log may have grown before the subscription.
                self._wake_channels(new)
            if old := subscribed - wanted:
                await subscription.unsubscribe(*old)
            subscribed = wanted
            message = await subscription.get_message(timeout=TURN_SECONDS)
            if message is not None:
                self._wake_channels({message["channel"].decode()})

    def _wake_channels(self, channels: set[str]) -> None:
        self._wake(
            {
                follower
                for follower in self._followers
                if log_channel(self._prefix, follower.task_id) in channels
            }
        )

    def _wake(self, followers: set[LogFollower]) -> None:
        for follower in followers:
            follower.wake()
