"""`Client` and `AsyncClient`: the service's HTTP API as Python methods.

Both have the same operations, which are defined once; `Client` blocks, `AsyncClient` is awaited.
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

from overnight.client.account import Account, DeadLetters, Locks, Triggers, UsageAndApprovals
from overnight.client.admin import Admin
from overnight.client.agent_profiles import AgentProfiles
from overnight.client.agents import Agents
from overnight.client.bulk import Bulk
from overnight.client.calls import Call, path, read, read_list, send
from overnight.client.dags import Dags
from overnight.client.discovery import Environment, find_server
from overnight.client.event_stream import follow_events
from overnight.client.hooks import Hooks
from overnight.client.nights import Nights
from overnight.client.notifications import Notifications
from overnight.client.operations import D, Group, iteration, operation
from overnight.client.queue import Queue
from overnight.client.request_plan import ItemSteps, RequestPlan
from overnight.client.rules import Rules
from overnight.client.schedules import Schedules
from overnight.client.tasks import Tasks
from overnight.client.transports import AsyncTransport, RequestOptions, SyncTransport
from overnight.models.field_errors import validate
from overnight.models.tasks import Event, Forecast, Plan, PlanRequest, QueueStatus, UserLimits
from overnight.version import VERSION

T = TypeVar("T")
TIMEOUT_SECONDS = 30.0
RETRIES = 3
FORECASTS = 50
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Operations(Group[D], Generic[D]):
    """The operations of both clients; a new group of operations is one line here."""

    def __init__(self, transport: D) -> None:
        super().__init__(transport)
        self.tasks: Tasks[D] = Tasks(transport)
        self.dags: Dags[D] = Dags(transport)
        self.bulk: Bulk[D] = Bulk(transport)
        self.queue: Queue[D] = Queue(transport)
        self.dead_letters: DeadLetters[D] = DeadLetters(transport)
        self.locks: Locks[D] = Locks(transport)
        self.usage: UsageAndApprovals[D] = UsageAndApprovals(transport)
        self.triggers: Triggers[D] = Triggers(transport)
        self.schedules: Schedules[D] = Schedules(transport)
        self.hooks: Hooks[D] = Hooks(transport)
        self.rules: Rules[D] = Rules(transport)
        self.agent_profiles: AgentProfiles[D] = AgentProfiles(transport)
        self.notifications: Notifications[D] = Notifications(transport)
        self.me: Account[D] = Account(transport)
        self.nights: Nights[D] = Nights(transport)
        self.agents: Agents[D] = Agents(transport)
        self.admin: Admin[D] = Admin(transport)

    @operation
    def queue_status(self) -> Call[QueueStatus]:
        """Return how many of your tasks run and wait."""
        return read(QueueStatus, path("tasks", "queue-status"))

    @operation
    def limits(self) -> Call[UserLimits]:
        """Return the limits of your plan and how much of them is used."""
        return read(UserLimits, path("users", "me", "limits"))

    @operation
    def forecasts(self, *, limit: int = FORECASTS) -> Call[list[Forecast]]:
        """Return the forecasts of your running tasks and of the next to start."""
        return read_list(Forecast, path("tasks", "forecast"), limit=limit)

    @operation
    def plan(
        self,
        tasks: Sequence[Mapping[str, Any]],
        *,
        edges: Sequence[tuple[int, int]] = (),
        by_at: datetime | None = None,
    ) -> Call[Plan]:
        """Return when the tasks of a batch would run if it were submitted now; nothing is.

        Each task has the fields of `TaskCreate`; an edge is (parent, child), indexes of `tasks`.
        """
        pairs = [{"parent": parent, "child": child} for parent, child in edges]
        body = validate(PlanRequest, {"tasks": list(tasks), "edges": pairs, "by_at": by_at})
        return send(Plan, "POST", path("plan"), body)

    @iteration
    def stream(self, *, dag_id: str | None = None, after: int | None = None) -> ItemSteps[Event]:
        """Yield the events of all your tasks, or of the tasks of one graph, from now on.

        A broken connection is resumed. `after` is the id of the last event you have seen; the
        events since then come first.
        """
        retries = self.transport.options.retries
        yield from follow_events(dag_id=dag_id, after=after, retries=retries)

    def with_options(self, *, timeout: float | None = None, retries: int | None = None) -> Self:
        """Return a client with another timeout or number of retries, on the same connections."""
        options = self.transport.options.replace(timeout, retries)
        other = copy.copy(self)
        Operations.__init__(other, replace(self.transport, options=options))
        return other


class Client(Operations[SyncTransport]):
    """A client of the service; threads may share it.

    `Client()` finds address and key by itself: OVERNIGHT_URL and OVERNIGHT_API_KEY, else a profile,
    else the local stack that runs in this directory or one above it. The constructor raises
    NotConfigured if it finds no address or no key. A request that fails temporarily (no connection,
    429, 503) is sent again up to `retries` times, unless the service asks for a wait of more than
    30 seconds (Retry-After). A create has an idempotency key, so that it creates one task even if
    it is sent twice.
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
        super().__init__(SyncTransport(http, RequestOptions(timeout, retries), sleep))

    def call(self, plan: RequestPlan[T]) -> T:
        """Execute a call or a longer request plan, and return its result."""
        return self.transport.run(plan)

    def close(self) -> None:
        """Close the connections."""
        self.transport.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient(Operations[AsyncTransport]):
    """The client for asyncio: every operation of `Client`, to be awaited."""

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
        super().__init__(AsyncTransport(http, RequestOptions(timeout, retries), sleep))

    async def call(self, plan: RequestPlan[T]) -> T:
        """Execute a call or a longer request plan, and return its result."""
        return await self.transport.run(plan)

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.http.aclose()

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
    """Return the base URL and the headers, from the arguments or from what is found."""
    server = find_server(Environment.read(), url=url, api_key=api_key)
    return {
        "base_url": server.url,
        "headers": {"Authorization": f"Bearer {server.api_key}", "User-Agent": _user_agent()},
        # A proxy named in the environment cannot reach a service on this machine.
        "trust_env": httpx2.URL(server.url).host not in LOOPBACK,
    }


def _user_agent() -> str:
    return f"overnight-python/{VERSION}"
