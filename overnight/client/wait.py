"""Wait until a task, a graph or a bulk operation has ended, by long polls or by polling."""

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from overnight.client.calls import MAX_HOLD_SECONDS, Call
from overnight.client.request_plan import PlanSteps, Sleep
from overnight.client.retry import MAX_OUTAGE_SECONDS, is_temporary
from overnight.errors import Refused, TooManyStreams, Unreachable

NO_SUCH_ROUTE = "NOT_FOUND"


class HasEnd(Protocol):
    """A resource that reaches a final state."""

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""


E = TypeVar("E", bound=HasEnd)


def wait_until_final(
    get: Callable[[], Call[E]],
    *,
    timeout: float | None,
    poll: float,
    timed_out: Callable[[E, float], Exception],
    long_poll: Callable[[float], Call[E]] | None = None,
    on_progress: Callable[[E], object] | None = None,
) -> PlanSteps[E]:
    """Return the resource once it is final; raise `timed_out(resource, timeout)` if that is late.

    `long_poll` makes a call that the service answers when the resource has ended, or after a number
    of seconds. Without it, or if the service has no such route or no free connection for it, `get`
    is called every `poll` seconds. `on_progress` receives every state that was read. An outage of
    the service is tolerated for a minute, so that a restart does not end a wait of hours.
    """
    started_at = responded_at = time.monotonic()
    last: E | None = None
    while True:
        asked_at = time.monotonic()
        left = None if timeout is None else max(0.0, timeout - (asked_at - started_at))
        try:
            last = yield from (
                get()
                if long_poll is None
                else long_poll(MAX_HOLD_SECONDS if left is None else left)
            )
            responded_at = time.monotonic()
            if on_progress is not None:
                on_progress(last)
        except (Refused, Unreachable) as error:
            if long_poll is not None and _has_no_long_poll(error):
                long_poll = None
                continue
            outage = asked_at - responded_at
            if last is None or not is_temporary(error) or outage > MAX_OUTAGE_SECONDS:
                raise
        if last is not None and last.is_final:
            return last
        if last is not None and timeout is not None and time.monotonic() - started_at >= timeout:
            raise timed_out(last, timeout)
        if time.monotonic() - asked_at < poll:
            yield Sleep(poll if left is None else min(poll, left))


def _has_no_long_poll(error: Exception) -> bool:
    """Whether the service refused the long poll only, so that polling still works."""
    if isinstance(error, TooManyStreams):
        return True
    return isinstance(error, Refused) and error.code == NO_SUCH_ROUTE
