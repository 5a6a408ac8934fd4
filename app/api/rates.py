"""How often one caller may ask: a bucket of tokens in Redis, shared by all API processes.

Redis must never be in the way of a submit: when it does not answer at once nobody is counted, and
for a while it is not even asked.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

from redis import RedisError

from app.events.patience import impatient

SCRIPT = Path(__file__).with_name("bucket.lua")
PATIENCE_SECONDS = 0.05
REST_SECONDS = 5.0


class TooManyRequests(Exception):
    """The caller's bucket is empty; `retry_after` is in how many seconds it no longer is."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests; try again in {retry_after} s")
        self.retry_after = retry_after


class Rates:
    """The buckets of all callers."""

    def __init__(
        self,
        redis_url: str,
        prefix: str,
        *,
        per_second: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = impatient(redis_url, PATIENCE_SECONDS)
        self._take = self._redis.register_script(SCRIPT.read_text())
        self._prefix = f"{prefix}rate:"
        self._limits = [per_second, burst]
        self._clock = clock
        self._asks_again_at = 0.0

    def take(self, name: str) -> None:
        """Count one request of this caller, or refuse it; without Redis none is refused."""
        if self._clock() < self._asks_again_at:
            return
        try:
            milliseconds = int(self._take(keys=[self._prefix + name], args=self._limits))
        except RedisError:
            self._asks_again_at = self._clock() + REST_SECONDS
            return
        if milliseconds:
            raise TooManyRequests(max(1, math.ceil(milliseconds / 1000)))

    def close(self) -> None:
        """Leave Redis."""
        self._redis.close()
