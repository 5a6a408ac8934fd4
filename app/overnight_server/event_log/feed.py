"""The live feed of the event log: one query serves all event streams of the process.

While any stream is open, one asyncio task reads the log every quarter of a second and wakes the
streams that have new events. So an open stream needs no database connection. While Postgres is
away, streams stay open, and deliver what they missed when it is back.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from uuid import UUID

import anyio.to_thread
from sqlalchemy import Connection

from overnight.errors import TooManyStreams
from overnight_server.event_log.reader import Horizon, Topic, touched
from overnight_server.store.db import Db
from overnight_server.telemetry import LogEvent, Outage

POLL_SECONDS = 0.25
# The pause between two tries while Postgres does not answer.
RETRY_SECONDS = 1.0


class Subscription:
    """One open stream; it is woken when its topic has new events."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._woken = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        """Wait for new events; False if the time passed without any."""
        try:
            await asyncio.wait_for(self._woken.wait(), seconds)
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    def wake(self) -> None:
        """Wake the stream because there are new events."""
        self._woken.set()


class Feed:
    """The open streams of this process, and the asyncio task that reads the log for them."""

    def __init__(self, db: Db, *, per_user: int, poll_seconds: float = POLL_SECONDS) -> None:
        self._db = db
        self._per_user = per_user
        self._poll_seconds = poll_seconds
        self._subscriptions: set[Subscription] = set()
        # An outage may close the last stream, so its end may be seen by the task of a later one.
        self._outage = Outage(LogEvent.DATABASE_UNREACHABLE, LogEvent.DATABASE_BACK)
        self._horizon = Horizon()
        self._polling: asyncio.Task[None] | None = None
        self.is_closed = False

    @property
    def horizon(self) -> int | None:
        """The id up to which the log may be read; None before the first poll."""
        return self._horizon.at

    @contextmanager
    def subscribe(self, topic: Topic) -> Iterator[Subscription]:
        """Subscribe to a topic while the context is open.

        Raises TooManyStreams if the user has too many open streams already.
        """
        open_streams = sum(other.topic.user_id == topic.user_id for other in self._subscriptions)
        if open_streams >= self._per_user:
            raise TooManyStreams(self._per_user)
        subscription = Subscription(topic)
        self._subscriptions.add(subscription)
        if self._polling is None or self._polling.done():
            # Events from while no stream was open need not be announced to the new one.
            self._horizon = Horizon()
            self._polling = asyncio.create_task(self._poll())
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def close(self) -> None:
        """Wake all streams, so that the process can stop without waiting for them."""
        self.is_closed = True
        self._wake_all()

    async def _poll(self) -> None:
        """Read the log while any stream is open."""
        while self._subscriptions and not self.is_closed:
            try:
                await self._wake_streams_with_news()
            except Exception as error:  # noqa: BLE001 - the streams wait for this task alone
                self._outage.begin(error)
            else:
                self._outage.end()
            await asyncio.sleep(RETRY_SECONDS if self._outage.is_on else self._poll_seconds)

    async def _wake_streams_with_news(self) -> None:
        before = self._horizon.at
        users = {subscription.topic.user_id for subscription in self._subscriptions}

        def read_changes(tx: Connection) -> list[tuple[UUID, UUID, UUID]]:
            now = self._horizon.advance(tx)
            if before is None or now is None or now == before:
                return []
            return touched(tx, users, after=before, until=now)

        # This query finds which users have new events, at once for all streams. Each stream then
        # reads its own events with the rights of its user.
        changes = await anyio.to_thread.run_sync(
            partial(self._db.atomically, read_changes, all_users=True)
        )
        if before is None and self._horizon.at is not None:
            self._wake_all()
        for change in changes:
            for subscription in self._subscriptions:
                if subscription.topic.covers(*change):
                    subscription.wake()

    def _wake_all(self) -> None:
        for subscription in self._subscriptions:
            subscription.wake()
