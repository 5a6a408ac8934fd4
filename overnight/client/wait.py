"""Waiting for an end: the service answers the moment it comes, or is asked now and then."""

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from overnight.client.retry import PATIENCE_SECONDS, is_passing
from overnight.client.scripts import Pause, Steps
from overnight.client.task_calls import LONGEST_HOLD_SECONDS, Call
from overnight.errors import Refused, TooManyStreams, Unreachable

NO_SUCH_ROUTE = "NOT_FOUND"


class Ending(Protocol):
    """Whatever comes to an end."""

    @property
    def is_final(self) -> bool:
        """Whether it has."""


E = TypeVar("E", bound=Ending)


def until_ended(
    hold: Callable[[float], Call[E]],
    look: Callable[[], Call[E]],
    *,
    timeout: float | None,
    poll: float,
    late: Callable[[E, float], Exception],
) -> Steps[E]:
    """Return what is waited for once it has ended; `late` makes the error if the time ran out.

    `hold` asks a service to hold its answer back for at most so many seconds; one that cannot, or
    has enough who wait, is asked by `look` every `poll` seconds.
    """
    began = heard = time.monotonic()
    holds = True
    seen: E | None = None
    while True:
        asked = time.monotonic()
        left = LONGEST_HOLD_SECONDS if timeout is None else max(0.0, timeout - (asked - began))
        try:
            seen = yield from hold(left) if holds else look()
            heard = time.monotonic()
        except (Refused, Unreachable) as error:
            if holds and _cannot_hold(error):
                holds = False
                continue
            # A service that restarts must not end a wait that lasts all night.
            if seen is None or not is_passing(error) or asked - heard > PATIENCE_SECONDS:
                raise
        if seen is not None and seen.is_final:
            return seen
        if seen is not None and timeout is not None and time.monotonic() - began >= timeout:
            raise late(seen, timeout)
        if time.monotonic() - asked < poll:
            yield Pause(poll if timeout is None else min(poll, left))


def _cannot_hold(error: Exception) -> bool:
    """Whether the service knows no waiting, or has enough who wait; asking still helps."""
    if isinstance(error, TooManyStreams):
        return True
    return isinstance(error, Refused) and error.code == NO_SUCH_ROUTE
