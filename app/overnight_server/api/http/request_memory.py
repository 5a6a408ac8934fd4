"""How much memory the bodies of requests in progress may need, in all and for each caller."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from overnight.errors import Overloaded, TooManyRequests

#: A request that needs no more is not counted: the number of connections limits these requests.
UNCOUNTED_BYTES = 64 * 1024
#: One caller may have this share of all.
CALLERS_SHARE = 0.5
#: How many bodies of one caller may be on their way at once.
MAX_UNREAD_BODIES = 50
RETRY_AFTER_SECONDS = 1


class RequestMemory:
    """Counts the memory of the requests in progress; used by the event loop's thread only."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._per_caller = int(total_bytes * CALLERS_SHARE)
        self._held: Counter[str] = Counter()
        self._unread: Counter[str] = Counter()

    @contextmanager
    def hold(self, caller: str) -> Iterator["HeldMemory"]:
        """Yield what one request of a caller holds; all of it is given back at the end."""
        held = HeldMemory(self, caller)
        try:
            yield held
        finally:
            if held.counted_bytes:
                _subtract(self._held, caller, held.counted_bytes)

    @contextmanager
    def unread_body(self, caller: str) -> Iterator[None]:
        """Count a body that has not arrived yet; raise TooManyRequests if there are too many."""
        if self._unread[caller] >= MAX_UNREAD_BODIES:
            raise TooManyRequests(
                RETRY_AFTER_SECONDS,
                {},
                f"the bodies of {MAX_UNREAD_BODIES} of your requests have not arrived yet",
            )
        self._unread[caller] += 1
        try:
            yield
        finally:
            _subtract(self._unread, caller, 1)

    def add(self, caller: str, size: int) -> None:
        """Count memory for a caller.

        Raises TooManyRequests if the caller's requests would need too much, and Overloaded if all
        requests would.
        """
        if self._held[caller] + size > self._per_caller:
            raise TooManyRequests(
                RETRY_AFTER_SECONDS, {}, "your requests in progress need too much memory"
            )
        if self._held.total() + size > self._total:
            raise Overloaded("the requests in progress need too much memory", RETRY_AFTER_SECONDS)
        self._held[caller] += size


class HeldMemory:
    """The memory that one request holds."""

    def __init__(self, memory: RequestMemory, caller: str) -> None:
        self._memory = memory
        self.caller = caller
        self.counted_bytes = 0

    def grow_to(self, size: int) -> None:
        """Hold this much from now on; raises what `RequestMemory.add` raises."""
        if size > UNCOUNTED_BYTES and size > self.counted_bytes:
            self._memory.add(self.caller, size - self.counted_bytes)
            self.counted_bytes = size


def _subtract(counts: Counter[str], caller: str, size: int) -> None:
    counts[caller] -= size
    if not counts[caller]:
        del counts[caller]
