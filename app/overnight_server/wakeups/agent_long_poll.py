"""The long poll of pull agents: one query serves all agents of the process that wait for work.

While any agent waits, one asyncio task queries every quarter of a second which waiting agents may
find work, and wakes only those. So a waiting agent needs no database connection. The gate decides
later what a woken agent really gets.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import anyio.to_thread

from overnight.errors import TooManyStreams
from overnight_server.domain.ids import UserId
from overnight_server.event_log.feed import POLL_SECONDS, RETRY_SECONDS
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, Outage


class WaitingAgent:
    """One agent that waits for work of its pool."""

    def __init__(self, owner: UserId, pool: str, serves: UserId | None) -> None:
        self.owner = owner
        self.pool = pool
        self.serves = serves
        self._woken = asyncio.Event()

    async def wait_for_work(self, seconds: float) -> None:
        """Wait until there may be work, or until the time has passed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)

    async def pause(self, seconds: float) -> None:
        """Ignore wake-ups for a while: the last one brought no work, nor would the next."""
        await asyncio.sleep(seconds)
        self._woken.clear()

    def wake(self) -> None:
        """Wake the agent because there may be work."""
        self._woken.set()


class AgentLongPoll:
    """The waiting agents of this process, and the asyncio task that queries for them."""

    def __init__(self, db: Db, *, per_user: int, poll_seconds: float = POLL_SECONDS) -> None:
        self._db = db
        self._per_user = per_user
        self._poll_seconds = poll_seconds
        self._waiting: set[WaitingAgent] = set()
        # An outage may end the last wait, so its end may be seen by the task of a later one.
        self._outage = Outage(LogEvent.DATABASE_UNREACHABLE, LogEvent.DATABASE_BACK)
        self._polling: asyncio.Task[None] | None = None
        self.is_closed = False

    @property
    def waiting_count(self) -> int:
        """How many agents wait."""
        return len(self._waiting)

    @contextmanager
    def register(self, owner: UserId, pool: str, serves: UserId | None) -> Iterator[WaitingAgent]:
        """Let an agent wait while the context is open.

        Raises TooManyStreams if too many agents of the owner wait already.
        """
        if sum(other.owner == owner for other in self._waiting) >= self._per_user:
            raise TooManyStreams(self._per_user)
        agent = WaitingAgent(owner, pool, serves)
        self._waiting.add(agent)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        try:
            yield agent
        finally:
            self._waiting.discard(agent)

    def close(self) -> None:
        """Wake all agents, so that the process can stop without waiting for them."""
        self.is_closed = True
        for agent in self._waiting:
            agent.wake()

    async def _poll(self) -> None:
        """Query while any agent waits."""
        while self._waiting and not self.is_closed:
            await asyncio.sleep(RETRY_SECONDS if self._outage.is_on else self._poll_seconds)
            agents = list(self._waiting)
            try:
                places = [(agent.pool, agent.serves) for agent in agents]
                pools = await anyio.to_thread.run_sync(partial(pools_with_work, self._db, places))
            except Exception as error:  # noqa: BLE001 - the agents wait for this task alone
                self._outage.begin(error)
                continue
            self._outage.end()
            for agent in agents:
                if agent.pool in pools:
                    agent.wake()


def pools_with_work(db: Db, agents: Iterable[tuple[str, UserId | None]]) -> set[str]:
    """Return the pools of those agents that may find a task, each with the user that it serves."""
    waiting = list(agents)
    params = {"names": [pool for pool, _ in waiting], "users": [serves for _, serves in waiting]}
    # One query for the agents of all users; it returns pool names and no data of any user.
    return set(
        db.atomically(
            lambda tx: tx.execute(statement("agents_with_work"), params).scalars().all(),
            all_users=True,
        )
    )
