"""One look at the event log for all who listen, so that a listener costs no connection.

While anybody listens, a single task per process looks at the log every quarter of a second and
wakes those whom something new concerns. A dead database is waited for: listeners stay, and hear
what they missed when it is back.
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
from overnight_server.telemetry import Event, emit

LOOK_EVERY_SECONDS = 0.25
# A database that is gone is asked again without haste.
PATIENCE_SECONDS = 1.0


class Subscription:
    """Somebody who listens to a topic; woken when there is something to read."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._news = asyncio.Event()

    async def news(self, seconds: float) -> bool:
        """Wait until there is something new to read; False if the time passed without."""
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except TimeoutError:
            return False
        self._news.clear()
        return True

    def wake(self) -> None:
        """Say that there is something new to read."""
        self._news.set()


class Feed:
    """Those who listen in this process, and the one task that looks for them."""

    def __init__(self, db: Db, *, per_user: int, look_every: float = LOOK_EVERY_SECONDS) -> None:
        self._db = db
        self._per_user = per_user
        self._look_every = look_every
        self._listeners: set[Subscription] = set()
        self._horizon = Horizon()
        self._looking: asyncio.Task[None] | None = None
        self.is_closed = False

    @property
    def horizon(self) -> int | None:
        """How far the log may be read; None until the first look."""
        return self._horizon.at

    @contextmanager
    def listening(self, topic: Topic) -> Iterator[Subscription]:
        """Listen to a topic for as long as the context is open.

        TooManyStreams says that its user listens in as many places as is allowed.
        """
        open_now = sum(one.topic.user_id == topic.user_id for one in self._listeners)
        if open_now >= self._per_user:
            raise TooManyStreams(self._per_user)
        one = Subscription(topic)
        self._listeners.add(one)
        if self._looking is None or self._looking.done():
            # Whoever begins to listen now does not ask for what happened while nobody did.
            self._horizon = Horizon()
            self._looking = asyncio.create_task(self._look_on())
        try:
            yield one
        finally:
            self._listeners.discard(one)

    def close(self) -> None:
        """Send everybody home: a process that stops must not wait for its listeners."""
        self.is_closed = True
        self._wake_all()

    async def _look_on(self) -> None:
        """Look for as long as somebody listens."""
        troubled = False
        while self._listeners and not self.is_closed:
            try:
                await self._look()
                troubled = False
            except Exception as error:  # noqa: BLE001 - nobody else would look for them
                if not troubled:
                    emit(Event.DATABASE_UNREACHABLE, error=str(error).strip())
                troubled = True
            await asyncio.sleep(PATIENCE_SECONDS if troubled else self._look_every)

    async def _look(self) -> None:
        before = self._horizon.at
        users = {one.topic.user_id for one in self._listeners}

        def look(tx: Connection) -> list[tuple[UUID, UUID, UUID]]:
            now = self._horizon.look(tx)
            if before is None or now is None or now == before:
                return []
            return touched(tx, users, after=before, until=now)

        # For all who listen at once; what each then reads, they read behind their own wall.
        changed = await anyio.to_thread.run_sync(partial(self._db.atomically, look, all_users=True))
        if before is None and self._horizon.at is not None:
            self._wake_all()
        for found in changed:
            for one in self._listeners:
                if one.topic.covers(*found):
                    one.wake()

    def _wake_all(self) -> None:
        for one in self._listeners:
            one.wake()
