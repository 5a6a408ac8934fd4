"""One look for all agents that wait for work, so that a waiting one costs no connection.

While anybody waits, a single task per process asks every quarter of a second which of those who
wait might find something, and wakes them alone. What there is for them the gate decides.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import anyio.to_thread

from overnight.errors import TooManyStreams
from overnight_server.domain.ids import UserId
from overnight_server.event_log.feed import LOOK_EVERY_SECONDS, PATIENCE_SECONDS
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import Event, emit


class Waiting:
    """An agent that waits; woken when there may be work for its pool."""

    def __init__(self, owner: UserId, pool: str, serves: UserId | None) -> None:
        self.owner = owner
        self.pool = pool
        self.serves = serves
        self._rung = asyncio.Event()

    async def work(self, seconds: float) -> None:
        """Wait until there may be work, or until the time has passed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._rung.wait(), seconds)

    async def rest(self, seconds: float) -> None:
        """Be deaf for a while: it was woken in vain, and would be again at once."""
        await asyncio.sleep(seconds)
        self._rung.clear()

    def ring(self) -> None:
        """Say that there may be work."""
        self._rung.set()


class AgentLongPoll:
    """Those who wait for work in this process, and the one task that looks for them."""

    def __init__(self, db: Db, *, per_user: int, look_every: float = LOOK_EVERY_SECONDS) -> None:
        self._db = db
        self._per_user = per_user
        self._look_every = look_every
        self._waiting: set[Waiting] = set()
        self._looking: asyncio.Task[None] | None = None
        self.is_closed = False

    @property
    def waiting_now(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @contextmanager
    def waiting(self, owner: UserId, pool: str, serves: UserId | None) -> Iterator[Waiting]:
        """Wait for work for as long as the context is open.

        TooManyStreams says that the owner's agents wait in as many places as is allowed.
        """
        if sum(other.owner == owner for other in self._waiting) >= self._per_user:
            raise TooManyStreams(self._per_user)
        one = Waiting(owner, pool, serves)
        self._waiting.add(one)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_on())
        try:
            yield one
        finally:
            self._waiting.discard(one)

    def close(self) -> None:
        """Send everybody home: a process that stops must not wait for them."""
        self.is_closed = True
        for one in self._waiting:
            one.ring()

    async def _look_on(self) -> None:
        """Look for as long as somebody waits."""
        troubled = False
        while self._waiting and not self.is_closed:
            await asyncio.sleep(PATIENCE_SECONDS if troubled else self._look_every)
            waiting = list(self._waiting)
            try:
                found = await anyio.to_thread.run_sync(partial(self._with_work, waiting))
                troubled = False
            except Exception as error:  # noqa: BLE001 - nobody else would look for them
                if not troubled:
                    emit(Event.DATABASE_UNREACHABLE, error=str(error).strip())
                troubled = True
                continue
            for one in waiting:
                if one.pool in found:
                    one.ring()

    def _with_work(self, waiting: Sequence[Waiting]) -> set[str]:
        asked = {
            "names": [one.pool for one in waiting],
            "users": [one.serves for one in waiting],
        }
        # For all who wait at once; only whether there is any, and nothing of whose.
        return set(
            self._db.atomically(
                lambda tx: tx.execute(statement("agents_with_work"), asked).scalars().all(),
                all_users=True,
            )
        )
