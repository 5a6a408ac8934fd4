"""Who carries scripts out: one driver that waits, and one that is awaited.

This is the only place where the two kinds of client differ. Each driver knows how to do every
step once; all that is decided (when to try again, where to resume) is decided in the scripts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import httpx2

from overnight.client.scripts import (
    Item,
    Line,
    Open,
    Outcome,
    Pause,
    Playing,
    Script,
    Send,
    Step,
    exchange,
    fault,
)
from overnight.client.task_calls import Call

T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """How long an answer may take, in seconds, and how often a request is sent again."""

    timeout: float
    retries: int

    def but(self, timeout: float | None, retries: int | None) -> "Patience":
        """Return the same with what is given changed."""
        return Patience(
            self.timeout if timeout is None else timeout,
            self.retries if retries is None else retries,
        )

    def limits(self, call: Call[Any]) -> httpx2.Timeout:
        """Return how long one call may take, with what the service may hold it back for."""
        return httpx2.Timeout(self.timeout, read=self.timeout + call.holds)


@dataclass(frozen=True)
class Sync:
    """Carries scripts out while the caller waits."""

    http: httpx2.Client
    patience: Patience
    sleep: Callable[[float], None] = time.sleep

    def run(self, script: Script[T]) -> T:
        """Play a script to its end and return its result."""
        playing = Playing(script)
        for item in self._play(playing):
            raise TypeError(f"only a series gives items, such as {item!r}")
        return cast("T", playing.result)

    def iterate(self, script: Script[None]) -> Iterator[Any]:
        """Play a script and yield its items; whoever stops early hangs up."""
        yield from self._play(Playing(script))

    def _play(self, playing: Playing[Any]) -> Iterator[Any]:
        answer = _Answer()
        try:
            while (step := playing.step) is not None:
                if isinstance(step, Item):
                    yield step.value
                    playing.answer(None)
                    continue
                try:
                    came = self._do(step, answer)
                except Exception as error:  # noqa: BLE001 - the script knows what it means
                    playing.fail(error)
                else:
                    playing.answer(came)
        finally:
            playing.close()
            answer.close()

    def _do(self, step: Step, answer: "_Answer") -> object:
        url = self.http.base_url
        match step:
            case Call():
                return self.run(exchange(step, url=url, retries=self.patience.retries))
            case Send(call):
                return self._send(call)
            case Pause(seconds):
                self.sleep(seconds)
            case Open(call):
                answer.close()
                answer.take(self._send(call, stream=True), url)
            case Line():
                return answer.line(url)
        return None

    def _send(self, call: Call[Any], *, stream: bool = False) -> Outcome:
        try:
            return self.http.send(_request(self.http, call, self.patience), stream=stream)
        except httpx2.TransportError as error:
            return error


@dataclass
class _Answer:
    """An answer that is being read line by line."""

    response: httpx2.Response | None = None
    lines: Iterator[str] = field(default_factory=lambda: iter(()))

    def take(self, outcome: Outcome, url: httpx2.URL) -> None:
        if not isinstance(outcome, httpx2.Response):
            raise fault(outcome, url)
        self.response, self.lines = outcome, outcome.iter_lines()
        if not outcome.is_success:
            outcome.read()
            raise fault(outcome, url)

    def line(self, url: httpx2.URL) -> str | None:
        try:
            return next(self.lines, None)
        except httpx2.TransportError as error:
            raise fault(error, url) from error

    def close(self) -> None:
        if self.response is not None:
            self.response.close()


@dataclass(frozen=True)
class Async:
    """Carries scripts out while others run; every result is awaited."""

    http: httpx2.AsyncClient
    patience: Patience
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def run(self, script: Script[T]) -> T:
        """Play a script to its end and return its result."""
        playing = Playing(script)
        async for item in self._play(playing):
            raise TypeError(f"only a series gives items, such as {item!r}")
        return cast("T", playing.result)

    async def iterate(self, script: Script[None]) -> AsyncIterator[Any]:
        """Play a script and yield its items; whoever stops early hangs up."""
        async for item in self._play(Playing(script)):
            yield item

    async def _play(self, playing: Playing[Any]) -> AsyncIterator[Any]:
        answer = _AsyncAnswer()
        try:
            while (step := playing.step) is not None:
                if isinstance(step, Item):
                    yield step.value
                    playing.answer(None)
                    continue
                try:
                    came = await self._do(step, answer)
                except Exception as error:  # noqa: BLE001 - the script knows what it means
                    playing.fail(error)
                else:
                    playing.answer(came)
        finally:
            playing.close()
            await answer.close()

    async def _do(self, step: Step, answer: "_AsyncAnswer") -> object:
        url = self.http.base_url
        match step:
            case Call():
                return await self.run(exchange(step, url=url, retries=self.patience.retries))
            case Send(call):
                return await self._send(call)
            case Pause(seconds):
                await self.sleep(seconds)
            case Open(call):
                await answer.close()
                await answer.take(await self._send(call, stream=True), url)
            case Line():
                return await answer.line(url)
        return None

    async def _send(self, call: Call[Any], *, stream: bool = False) -> Outcome:
        try:
            return await self.http.send(_request(self.http, call, self.patience), stream=stream)
        except httpx2.TransportError as error:
            return error


async def _no_lines() -> AsyncIterator[str]:
    return
    yield


@dataclass
class _AsyncAnswer:
    """An answer that is being read line by line, while others run."""

    response: httpx2.Response | None = None
    lines: AsyncIterator[str] = field(default_factory=_no_lines)

    async def take(self, outcome: Outcome, url: httpx2.URL) -> None:
        if not isinstance(outcome, httpx2.Response):
            raise fault(outcome, url)
        self.response, self.lines = outcome, outcome.aiter_lines()
        if not outcome.is_success:
            await outcome.aread()
            raise fault(outcome, url)

    async def line(self, url: httpx2.URL) -> str | None:
        try:
            return await anext(self.lines, None)
        except httpx2.TransportError as error:
            raise fault(error, url) from error

    async def close(self) -> None:
        if self.response is not None:
            await self.response.aclose()


def _request(
    http: httpx2.Client | httpx2.AsyncClient, call: Call[Any], patience: Patience
) -> httpx2.Request:
    return http.build_request(
        call.method,
        call.path,
        params=dict(call.params),
        json=call.json,
        headers=dict(call.headers),
        timeout=patience.limits(call),
    )
