"""What a client does, written down without doing it: scripts whose steps a driver carries out.

A script is a generator. It yields steps and is sent their answers, and what it returns is the
result; so one text serves a client that waits and a client that is awaited. A `Call` is the
shortest script there is: `task = yield from task_calls.get_task(task_id)`.
"""

import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import httpx2

from overnight.client import task_calls
from overnight.client.retry import wait_before_next
from overnight.client.task_calls import Call
from overnight.errors import NotUnderstood, OvernightError, Unreachable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Outcome = httpx2.Response | httpx2.TransportError


@dataclass(frozen=True)
class Send:
    """Make a request once; the answer is the response, or the fault that came instead."""

    call: Call[Any]


@dataclass(frozen=True)
class Pause:
    """Let time pass."""

    seconds: float


@dataclass(frozen=True)
class Open:
    """Make a request whose answer is read line by line; opening another hangs up on this one."""

    call: Call[Any]


@dataclass(frozen=True)
class Line:
    """Read a line of the answer that is open, or None at its end."""


@dataclass(frozen=True)
class Item(Generic[T]):
    """Hand something to whoever iterates; only a series has them."""

    value: T


Step = Call[Any] | Send | Pause | Open | Line
Steps = Generator[Step, Any, T]
Series = Generator[Step | Item[T], Any, None]


class Script(Protocol[T_co]):
    """Whatever can be played: a call, or a generator of steps that returns a result."""

    def __iter__(self) -> Generator[Step | Item[Any], Any, T_co]:
        """Begin."""


class Playing(Generic[T]):
    """A script under way: the step it stands at, and how its driver answers."""

    def __init__(self, script: Script[T]) -> None:
        self._script = iter(script)
        self.step: Step | Item[Any] | None = None
        self.result: T | None = None
        self.answer(None)

    def answer(self, value: object) -> None:
        """Tell the script what its step came to, and go on to the next."""
        try:
            self.step = self._script.send(value)
        except StopIteration as end:
            self.step, self.result = None, end.value

    def fail(self, error: Exception) -> None:
        """Tell the script that its step failed; what it does not catch comes out here."""
        try:
            self.step = self._script.throw(error)
        except StopIteration as end:
            self.step, self.result = None, end.value

    def close(self) -> None:
        """Leave the script where it is."""
        self._script.close()


def exchange(call: Call[T], *, url: httpx2.URL, retries: int) -> Steps[T]:
    """Make one call, again if that can help, and return its answer or raise its error."""
    sent = 0
    while True:
        outcome: Outcome = yield Send(call)
        sent += 1
        if isinstance(outcome, httpx2.Response) and outcome.is_success:
            return understood(call, outcome, url)
        wait = wait_before_next(sent, outcome, random.random())  # noqa: S311 - no secret
        if wait is None or sent > retries:
            raise fault(outcome, url)
        yield Pause(wait)


def understood(call: Call[T], answer: httpx2.Response, url: httpx2.URL) -> T:
    """Read a successful answer; what no Overnight service would say is an error of its own."""
    try:
        return call.read(answer)
    except ValueError as error:
        raise NotUnderstood(f"{url} did not answer as an Overnight server does") from error


def fault(outcome: Outcome, url: httpx2.URL) -> OvernightError:
    """Return the error that an outcome without success is for the caller."""
    if isinstance(outcome, httpx2.Response):
        return task_calls.refusal(outcome)
    return Unreachable(f"no answer from {url}: {outcome or type(outcome).__name__}")
