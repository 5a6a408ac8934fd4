"""The producer's way in: a client that speaks to the service over HTTP."""

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx2

from overnight import calls
from overnight.calls import Call
from overnight.dags import Dags
from overnight.errors import NotConfigured, NotUnderstood, TaskFailed, Unreachable, WaitTimedOut
from overnight.models import (
    Cancelled,
    Explanation,
    Forecast,
    Plan,
    QueueStatus,
    Task,
    TaskFields,
    UserLimits,
)
from overnight.retrying import wait_before_next

T = TypeVar("T")
TIMEOUT_SECONDS = 30.0
RETRIES = 3
PAGE = 100
FORECASTS = 50
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Client:
    """A connection to the service; safe to share between threads.

    Address and key come from the arguments, else from OVERNIGHT_URL and
    OVERNIGHT_API_KEY. Requests that met a passing fault (no connection, 429, 503) are
    sent again up to `retries` times; a create carries a key that makes it one task.
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
        self._http = httpx2.Client(timeout=timeout, transport=transport, **_address(url, api_key))
        self._retries = retries
        self._sleep = sleep
        self.tasks = Tasks(self)
        self.dags = Dags(self)

    def queue_status(self) -> QueueStatus:
        """Return how much of yours runs and waits."""
        return self.call(calls.queue_status())

    def limits(self) -> UserLimits:
        """Return what your plan allows and how much of it is used."""
        return self.call(calls.limits())

    def forecasts(self, *, limit: int = FORECASTS) -> list[Forecast]:
        """Return what is expected of your running tasks and of those that come next."""
        return self.call(calls.forecast_next(limit=limit))

    def plan(
        self,
        tasks: Sequence[Mapping[str, Any]],
        *,
        edges: Sequence[tuple[int, int]] = (),
        by_at: datetime | None = None,
    ) -> Plan:
        """Return what a batch would come to if it were queued now; nothing is.

        Each task has the fields of a create; an edge is (parent, child), places from 0.
        """
        pairs = [{"parent": parent, "child": child} for parent, child in edges]
        asked = {"tasks": list(tasks), "edges": pairs, "by_at": by_at}
        return self.call(calls.plan(calls.plan_request(asked)))

    def call(self, call: Call[T]) -> T:
        """Make one call, again if that can help, and return its answer or raise its error."""
        sent = 0
        while True:
            outcome = self._send(call)
            sent += 1
            if isinstance(outcome, httpx2.Response) and outcome.is_success:
                return self._read(call, outcome)
            wait = wait_before_next(sent, outcome, random.random())  # noqa: S311 - no secret
            if wait is None or sent > self._retries:
                raise self._fault(outcome)
            self._sleep(wait)

    def pause(self, seconds: float) -> None:
        """Wait between two looks at the same thing."""
        self._sleep(seconds)

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, call: Call[Any]) -> httpx2.Response | httpx2.TransportError:
        try:
            return self._http.request(
                call.method, call.path, params=dict(call.params), json=call.json
            )
        except httpx2.TransportError as error:
            return error

    def _read(self, call: Call[T], answer: httpx2.Response) -> T:
        try:
            return call.read(answer)
        except ValueError as error:
            message = f"{self._http.base_url} did not answer as an Overnight server does"
            raise NotUnderstood(message) from error

    def _fault(self, outcome: httpx2.Response | httpx2.TransportError) -> Exception:
        if isinstance(outcome, httpx2.Response):
            return calls.refusal(outcome)
        return Unreachable(f"no answer from {self._http.base_url}: {outcome or type(outcome)}")


class Tasks:
    """What can be done with tasks; reached as `client.tasks`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, title: str, **fields: Unpack[TaskFields]) -> Task:
        """Queue a task and return it; `overnight.models.TaskCreate` describes the fields."""
        return self._client.call(calls.create_task({"title": title, **fields}))

    def get(self, task_id: str) -> Task:
        """Return one task as it stands."""
        return self._client.call(calls.get_task(task_id))

    def list(self, *, status: str | None = None, limit: int | None = None) -> Iterator[Task]:
        """Yield your tasks, newest first, fetching page after page as they are needed."""
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(left, PAGE)
            page = self._client.call(calls.list_tasks(status=status, limit=size, before=cursor))
            yield from page.tasks
            if page.cursor is None:
                return
            cursor = page.cursor
            left = None if left is None else left - len(page.tasks)

    def explain(self, task_id: str) -> Explanation:
        """Return every reason a task is not running."""
        return self._client.call(calls.explain_task(task_id))

    def forecast(self, task_id: str) -> Forecast:
        """Return when a task is expected to start and to end."""
        return self._client.call(calls.forecast_task(task_id))

    def cancel(self, task_id: str) -> Cancelled:
        """Ask that a task be ended; one that runs is stopped at its next heartbeat."""
        return self._client.call(calls.cancel_task(task_id))

    def wait(
        self,
        task_id: str,
        *,
        timeout: float | None = None,
        poll: float = 1.0,
        check: bool = True,
    ) -> Task:
        """Return the task once it has ended, looking every `poll` seconds.

        Raises TaskFailed if it ended without success (unless `check` is off), and
        WaitTimedOut if it had not ended after `timeout` seconds; both carry the task.
        """
        began = time.monotonic()
        while not (task := self.get(task_id)).is_final:
            if timeout is None:
                self._client.pause(poll)
                continue
            left = timeout - (time.monotonic() - began)
            if left <= 0:
                raise WaitTimedOut(task, timeout)
            self._client.pause(min(poll, left))
        if check and task.state != "completed":
            raise TaskFailed(task)
        return task


def _address(url: str | None, api_key: str | None) -> dict[str, Any]:
    """Return where to call and as whom, from what was given or the environment."""
    url = url or os.environ.get("OVERNIGHT_URL")
    api_key = api_key or os.environ.get("OVERNIGHT_API_KEY")
    if not url:
        raise NotConfigured("no address: give Client(url=…) or set OVERNIGHT_URL")
    if not api_key:
        raise NotConfigured("no key: give Client(api_key=…) or set OVERNIGHT_API_KEY")
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {api_key}", "User-Agent": _user_agent()},
        # A proxy of the environment cannot reach our own machine.
        "trust_env": httpx2.URL(url).host not in LOOPBACK,
    }


def _user_agent() -> str:
    try:
        return f"overnight-python/{version('overnight')}"
    except PackageNotFoundError:
        return "overnight-python"
