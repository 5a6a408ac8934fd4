"""The calls of expensive routes: one at a time, with connections to Postgres of their own.

What is computed after a response has a thread and a connection besides, so that no request waits
for it.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread

from overnight.errors import Overloaded, TooManyRequests
from overnight_server.store.db import Db, Timeouts

#: How many calls run at once. Their thread reads from Postgres and waits for the process that
#: simulates, which computes one simulation at a time.
MAX_RUNNING: Final = 1
#: How many of the calls that follow a response run at once.
MAX_RUNNING_LATER: Final = 1
#: How many calls may wait or run, in all and for one caller.
MAX_CALLS: Final = 40
MAX_CALLS_PER_CALLER: Final = 4
#: A statement of a forecast reads the queue once; one that takes longer would only pile up.
TIMEOUTS: Final = Timeouts(statement=5.0)
RETRY_AFTER_SECONDS: Final = 2
EXPENSIVE: Final = "forecasts, plans, explanations and usage breakdowns"

T = TypeVar("T")


class ExpensiveCalls:
    """Runs expensive calls in a thread; used by the event loop's thread only."""

    def __init__(self, db: Db) -> None:
        self.db = db
        self._limiter = CapacityLimiter(MAX_RUNNING)
        self._limiter_later = CapacityLimiter(MAX_RUNNING_LATER)
        self._calls: Counter[str] = Counter()

    async def call(self, work: Callable[[], T]) -> T:
        """Call `work` in a thread as soon as one is free, and return its result."""
        return await to_thread.run_sync(work, limiter=self._limiter)

    async def call_later(self, work: Callable[[], T]) -> T:
        """Call `work` after a response was sent: in a thread for which no request waits."""
        return await to_thread.run_sync(work, limiter=self._limiter_later)

    @contextmanager
    def place(self, caller: str) -> Iterator[None]:
        """Count a request of a caller, before its body is read.

        Raises TooManyRequests if the caller has too many that wait or run, and Overloaded if all
        callers together have.
        """
        if self._calls[caller] >= MAX_CALLS_PER_CALLER:
            raise TooManyRequests(
                RETRY_AFTER_SECONDS,
                {},
                f"{MAX_CALLS_PER_CALLER} of your {EXPENSIVE} are being computed",
            )
        if self._calls.total() >= MAX_CALLS:
            raise Overloaded(f"too many {EXPENSIVE} are being computed", RETRY_AFTER_SECONDS)
        self._calls[caller] += 1
        try:
            yield
        finally:
            self._calls[caller] -= 1
            if not self._calls[caller]:
                del self._calls[caller]
