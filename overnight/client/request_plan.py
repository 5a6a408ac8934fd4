"""Request plans: what a client operation does, as steps that a transport executes.

A plan is a generator. It yields steps, receives the result of each step, and returns the result
of the operation. Because a plan performs no input or output itself, one plan serves both the
synchronous and the asynchronous client. A `Call` is the shortest plan: it yields itself and
returns its response, as in `task = yield from read(Task, path("tasks", task_id))`.
"""

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import httpx2

from overnight.client.calls import Call, Page, error_of
from overnight.client.retry import wait_before_next
from overnight.errors import NotUnderstood, OvernightError, Unreachable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Outcome = httpx2.Response | httpx2.TransportError
PAGE_SIZE = 100


@dataclass(frozen=True)
class SendOnce:
    """Step: send a request once; the result is the response or the transport error."""

    call: Call[Any]


@dataclass(frozen=True)
class Sleep:
    """Step: wait."""

    seconds: float


@dataclass(frozen=True)
class OpenStream:
    """Step: send a request whose response is read line by line; closes the stream before it."""

    call: Call[Any]


@dataclass(frozen=True)
class ReadLine:
    """Step: read one line of the open stream; the result is None at its end."""


@dataclass(frozen=True)
class Emit(Generic[T]):
    """Step: pass one item to the caller who iterates; only item plans have such steps."""

    item: T


Step = Call[Any] | SendOnce | Sleep | OpenStream | ReadLine
PlanSteps = Generator[Step, Any, T]
ItemSteps = Generator[Step | Emit[T], Any, None]


class RequestPlan(Protocol[T_co]):
    """A call, or a generator of steps that returns a result."""

    def __iter__(self) -> Generator[Step | Emit[Any], Any, T_co]:
        """Start the plan."""


class PlanExecution(Generic[T]):
    """A plan being executed: its current step, or its result once `step` is None."""

    def __init__(self, plan: RequestPlan[T]) -> None:
        self._steps = iter(plan)
        self.step: Step | Emit[Any] | None = None
        self.result: T | None = None
        self.resume(None)

    def resume(self, value: object) -> None:
        """Pass the result of the current step to the plan, and advance to the next step."""
        try:
            self.step = self._steps.send(value)
        except StopIteration as end:
            self.step, self.result = None, end.value

    def fail(self, error: Exception) -> None:
        """Throw `error` into the plan at its current step, and advance to the next step.

        Raises the error if the plan does not catch it, or the error that the plan raises instead.
        """
        try:
            self.step = self._steps.throw(error)
        except StopIteration as end:
            self.step, self.result = None, end.value

    def close(self) -> None:
        """End the plan at its current step."""
        self._steps.close()


def send_with_retries(call: Call[T], *, url: httpx2.URL, retries: int) -> PlanSteps[T]:
    """Make one call, up to `retries` times again if that can help, and return its result."""
    sent = 0
    while True:
        outcome: Outcome = yield SendOnce(call)
        sent += 1
        if isinstance(outcome, httpx2.Response) and outcome.is_success:
            return _result(call, outcome, url)
        wait = wait_before_next(sent, outcome, random.random())  # noqa: S311 - no secret
        if wait is None or sent > retries:
            raise outcome_error(outcome, url)
        yield Sleep(wait)


def outcome_error(outcome: Outcome, url: httpx2.URL) -> OvernightError:
    """Return the error that an unsuccessful response or a transport error means to the caller."""
    if isinstance(outcome, httpx2.Response):
        return error_of(outcome)
    return Unreachable(f"no response from {url}: {outcome or type(outcome).__name__}")


def paginate(
    get_page: Callable[[int, str | None], Call[Page[T]]], limit: int | None
) -> ItemSteps[T]:
    """Emit the items of a list up to a limit, requesting a page when it is needed.

    `get_page` gets the size of the page and the cursor where it begins.
    """
    cursor: str | None = None
    remaining = limit
    while remaining is None or remaining > 0:
        size = PAGE_SIZE if remaining is None else min(remaining, PAGE_SIZE)
        page = yield from get_page(size, cursor)
        for item in page.items:
            yield Emit(item)
        if page.cursor is None:
            return
        cursor = page.cursor
        remaining = None if remaining is None else remaining - len(page.items)


def _result(call: Call[T], response: httpx2.Response, url: httpx2.URL) -> T:
    try:
        return call.read(response)
    except ValueError as error:
        raise NotUnderstood(f"the response from {url} is not one of an Overnight server") from error
