"""The producer's way in: clients that speak to the service over HTTP.

`Client` waits for each answer, `AsyncClient` is awaited; what they can do is written once.
"""

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx2

from overnight.client import task_calls
from overnight.client.account import Account, DeadLetters, Locks, Spending, Triggers
from overnight.client.admin import Admin
from overnight.client.bulk import Bulk
from overnight.client.dags import Dags
from overnight.client.discovery import Environment, find
from overnight.client.drivers import Async, Patience, Sync
from overnight.client.event_stream import follow
from overnight.client.operations import D, Group, operation, series
from overnight.client.queue import Queue
from overnight.client.scripts import Script, Series
from overnight.client.task_calls import Call
from overnight.client.tasks import Tasks
from overnight.models.tasks import Event, Forecast, Plan, QueueStatus, UserLimits
from overnight.version import VERSION

T = TypeVar("T")
TIMEOUT_SECONDS = 30.0
RETRIES = 3
FORECASTS = 50
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Operations(Group[D], Generic[D]):
    """What every client can do; each further group of operations is one line here."""

    def __init__(self, driver: D) -> None:
        super().__init__(driver)
        self.tasks: Tasks[D] = Tasks(driver)
        self.dags: Dags[D] = Dags(driver)
        self.bulk: Bulk[D] = Bulk(driver)
        self.queue: Queue[D] = Queue(driver)
        self.dead_letters: DeadLetters[D] = DeadLetters(driver)
        self.locks: Locks[D] = Locks(driver)
        self.usage: Spending[D] = Spending(driver)
        self.triggers: Triggers[D] = Triggers(driver)
        self.me: Account[D] = Account(driver)
        self.admin: Admin[D] = Admin(driver)

    @operation
    def queue_status(self) -> Call[QueueStatus]:
        """Return how much of yours runs and waits."""
        return task_calls.queue_status()

    @operation
    def limits(self) -> Call[UserLimits]:
        """Return what your plan allows and how much of it is used."""
        return task_calls.limits()

    @operation
    def forecasts(self, *, limit: int = FORECASTS) -> Call[list[Forecast]]:
        """Return what is expected of your running tasks and of those that come next."""
        return task_calls.forecast_next(limit=limit)

    @operation
    def plan(
        self,
        tasks: Sequence[Mapping[str, Any]],
        *,
        edges: Sequence[tuple[int, int]] = (),
        by_at: datetime | None = None,
    ) -> Call[Plan]:
        """Return what a batch would come to if it were queued now; nothing is.

        Each task has the fields of a create; an edge is (parent, child), places from 0.
        """
        pairs = [{"parent": parent, "child": child} for parent, child in edges]
        asked = {"tasks": list(tasks), "edges": pairs, "by_at": by_at}
        return task_calls.plan(task_calls.plan_request(asked))

    @series
    def stream(self, *, dag_id: str | None = None, after: int | None = None) -> Series[Event]:
        """Yield what happens to all your tasks, or to those of one graph, from now on.

        A broken connection is opened again where it broke. `after` is the id of an event you
        have seen already: what came since is told first.
        """
        yield from follow(dag_id=dag_id, after=after, retries=self.driver.patience.retries)

    def with_options(self, *, timeout: float | None = None, retries: int | None = None) -> Self:
        """Return a client with other patience; it shares the connections of this one."""
        patience = self.driver.patience.but(timeout, retries)
        other = copy.copy(self)
        Operations.__init__(other, replace(self.driver, patience=patience))
        return other


class Client(Operations[Sync]):
    """A connection to the service; safe to share between threads.

    Address and key come from the arguments, else from OVERNIGHT_URL and OVERNIGHT_API_KEY, else
    from a profile, else from the deployment that runs on this machine. Requests that met a
    passing fault (no connection, 429, 503) are sent again up to `retries` times; a create carries a
    key that makes it one task.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        retries: int = RETRIES,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        http = httpx2.Client(transport=transport, **_address(url, api_key))
        super().__init__(Sync(http, Patience(timeout, retries), sleep))

    def call(self, script: Script[T]) -> T:
        """Make one call, or play a longer script, and return its result."""
        return self.driver.run(script)

    def close(self) -> None:
        """Give the connections back."""
        self.driver.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient(Operations[Async]):
    """The same for programs that await: every operation of `Client`, under the same name."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        retries: int = RETRIES,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        http = httpx2.AsyncClient(transport=transport, **_address(url, api_key))
        super().__init__(Async(http, Patience(timeout, retries), sleep))

    async def call(self, script: Script[T]) -> T:
        """Make one call, or play a longer script, and return its result."""
        return await self.driver.run(script)

    async def close(self) -> None:
        """Give the connections back."""
        await self.driver.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _address(url: str | None, api_key: str | None) -> dict[str, Any]:
    """Return where to call and as whom, from what was given or can be found."""
    server = find(Environment.here(), url=url, api_key=api_key)
    return {
        "base_url": server.url,
        "headers": {"Authorization": f"Bearer {server.api_key}", "User-Agent": _user_agent()},
        # A proxy of the environment cannot reach our own machine.
        "trust_env": httpx2.URL(server.url).host not in LOOPBACK,
    }


def _user_agent() -> str:
    return f"overnight-python/{VERSION}"
