"""The two transports that execute request plans: one blocks, one is awaited.

Only this module differs between `Client` and `AsyncClient`. A transport performs each step once;
when to retry and where to resume is decided in the plans.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import httpx2

from overnight.client.calls import Call
from overnight.client.request_plan import (
    Emit,
    OpenStream,
    Outcome,
    PlanExecution,
    ReadLine,
    RequestPlan,
    SendOnce,
    Sleep,
    Step,
    outcome_error,
    send_with_retries,
)
from overnight.trace_context import current_traceparent

T = TypeVar("T")


@dataclass(frozen=True)
class RequestOptions:
    """How many seconds a response may take, and how often a failed request is sent again."""

    timeout: float
    retries: int

    def replace(self, timeout: float | None, retries: int | None) -> "RequestOptions":
        """Return these options with the values that are not None."""
        return RequestOptions(
            self.timeout if timeout is None else timeout,
            self.retries if retries is None else retries,
        )

    def timeout_of(self, call: Call[Any]) -> httpx2.Timeout:
        """Return the timeout of one call, which includes the time the service may delay it."""
        return httpx2.Timeout(self.timeout, read=self.timeout + call.hold_seconds)


@dataclass(frozen=True)
class SyncTransport:
    """Executes request plans in the calling thread."""

    http: httpx2.Client
    options: RequestOptions
    sleep: Callable[[float], None] = time.sleep

    def run(self, plan: RequestPlan[T]) -> T:
        """Execute a plan and return its result."""
        execution = PlanExecution(plan)
        for item in self._execute(execution):
            raise TypeError(f"a plan that is run must not emit items, such as {item!r}")
        return cast("T", execution.result)

    def iterate(self, plan: RequestPlan[None]) -> Iterator[Any]:
        """Execute a plan and yield the items it emits; stopping early closes its connection."""
        yield from self._execute(PlanExecution(plan))

    def _execute(self, execution: PlanExecution[Any]) -> Iterator[Any]:
        stream = _Stream()
        try:
            while (step := execution.step) is not None:
                if isinstance(step, Emit):
                    yield step.item
                    execution.resume(None)
                    continue
                try:
                    result = self._perform(step, stream)
                except Exception as error:  # noqa: BLE001 - the plan decides what it means
                    execution.fail(error)
                else:
                    execution.resume(result)
        finally:
            execution.close()
            stream.close()

    def _perform(self, step: Step, stream: "_Stream") -> object:
        url = self.http.base_url
        match step:
            case Call():
                return self.run(send_with_retries(step, url=url, retries=self.options.retries))
            case SendOnce(call):
                return self._send(call)
            case Sleep(seconds):
                self.sleep(seconds)
            case OpenStream(call):
                stream.close()
                stream.open(self._send(call, stream=True), url)
            case ReadLine():
                return stream.read_line(url)
        return None

    def _send(self, call: Call[Any], *, stream: bool = False) -> Outcome:
        try:
            return self.http.send(_request(self.http, call, self.options), stream=stream)
        except httpx2.TransportError as error:
            return error


@dataclass
class _Stream:
    """A response that is read line by line."""

    response: httpx2.Response | None = None
    lines: Iterator[str] = field(default_factory=lambda: iter(()))

    def open(self, outcome: Outcome, url: httpx2.URL) -> None:
        if not isinstance(outcome, httpx2.Response):
            raise outcome_error(outcome, url)
        self.response, self.lines = outcome, outcome.iter_lines()
        if not outcome.is_success:
            outcome.read()
            raise outcome_error(outcome, url)

    def read_line(self, url: httpx2.URL) -> str | None:
        try:
            return next(self.lines, None)
        except httpx2.TransportError as error:
            raise outcome_error(error, url) from error

    def close(self) -> None:
        if self.response is not None:
            self.response.close()


@dataclass(frozen=True)
class AsyncTransport:
    """Executes request plans in an event loop."""

    http: httpx2.AsyncClient
    options: RequestOptions
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def run(self, plan: RequestPlan[T]) -> T:
        """Execute a plan and return its result."""
        execution = PlanExecution(plan)
        async for item in self._execute(execution):
            raise TypeError(f"a plan that is run must not emit items, such as {item!r}")
        return cast("T", execution.result)

    async def iterate(self, plan: RequestPlan[None]) -> AsyncIterator[Any]:
        """Execute a plan and yield the items it emits; stopping early closes its connection."""
        async for item in self._execute(PlanExecution(plan)):
            yield item

    async def _execute(self, execution: PlanExecution[Any]) -> AsyncIterator[Any]:
        stream = _AsyncStream()
        try:
            while (step := execution.step) is not None:
                if isinstance(step, Emit):
                    yield step.item
                    execution.resume(None)
                    continue
                try:
                    result = await self._perform(step, stream)
                except Exception as error:  # noqa: BLE001 - the plan decides what it means
                    execution.fail(error)
                else:
                    execution.resume(result)
        finally:
            execution.close()
            await stream.close()

    async def _perform(self, step: Step, stream: "_AsyncStream") -> object:
        url = self.http.base_url
        match step:
            case Call():
                plan = send_with_retries(step, url=url, retries=self.options.retries)
                return await self.run(plan)
            case SendOnce(call):
                return await self._send(call)
            case Sleep(seconds):
                await self.sleep(seconds)
            case OpenStream(call):
                await stream.close()
                await stream.open(await self._send(call, stream=True), url)
            case ReadLine():
                return await stream.read_line(url)
        return None

    async def _send(self, call: Call[Any], *, stream: bool = False) -> Outcome:
        try:
            return await self.http.send(_request(self.http, call, self.options), stream=stream)
        except httpx2.TransportError as error:
            return error


async def _no_lines() -> AsyncIterator[str]:
    return
    yield


@dataclass
class _AsyncStream:
    """A response that is read line by line in an event loop."""

    response: httpx2.Response | None = None
    lines: AsyncIterator[str] = field(default_factory=_no_lines)

    async def open(self, outcome: Outcome, url: httpx2.URL) -> None:
        if not isinstance(outcome, httpx2.Response):
            raise outcome_error(outcome, url)
        self.response, self.lines = outcome, outcome.aiter_lines()
        if not outcome.is_success:
            await outcome.aread()
            raise outcome_error(outcome, url)

    async def read_line(self, url: httpx2.URL) -> str | None:
        try:
            return await anext(self.lines, None)
        except httpx2.TransportError as error:
            raise outcome_error(error, url) from error

    async def close(self) -> None:
        if self.response is not None:
            await self.response.aclose()


def _request(
    http: httpx2.Client | httpx2.AsyncClient, call: Call[Any], options: RequestOptions
) -> httpx2.Request:
    return http.build_request(
        call.method,
        call.path,
        params=dict(call.params),
        json=call.json,
        headers=_headers(call),
        timeout=options.timeout_of(call),
    )


def _headers(call: Call[Any]) -> dict[str, str]:
    """Return the headers of a call, with the trace context of its caller."""
    traceparent = current_traceparent()
    return dict(call.headers) | ({} if traceparent is None else {"traceparent": traceparent})
