"""The callers of recent requests by their API key, so that most requests look up no key.

The user and the scopes of a key never change. Whether it is still valid may change at any time, so
every transaction of a request whose key was found here checks that first (`ActingUser.checks_key`).
"""

import hashlib
import time
from collections.abc import Callable

from overnight_server.control.keys import Caller

#: The look-up of a key also records its last use, so it is repeated after this time.
LIFETIME_SECONDS = 30.0
MAX_KEYS = 10_000


class KnownKeys:
    """Remembers the callers of recent requests; it stores hashes, never a key."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._callers: dict[bytes, tuple[float, Caller]] = {}

    def find(self, key: str) -> Caller | None:
        """Return the caller of a key that was looked up recently, or None."""
        ends_at, caller = self._callers.get(_digest(key), (0.0, None))
        return caller if self._clock() < ends_at else None

    def add(self, key: str, caller: Caller) -> None:
        """Remember the caller of a key."""
        if len(self._callers) >= MAX_KEYS:
            self._callers.clear()
        self._callers[_digest(key)] = (self._clock() + LIFETIME_SECONDS, caller)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
