"""How often one caller may ask: a bucket of tokens in Redis, shared by all API processes.

Redis must never be in the way of a submit: when it does not answer at once nobody is counted, and
for a while it is not even asked.
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from redis import RedisError

from overnight.errors import TooManyRequests
from overnight_server.wakeups.redis_client import fail_fast_client

SCRIPT = Path(__file__).with_name("token_bucket.lua")
PATIENCE_SECONDS = 0.05
REST_SECONDS = 5.0
#: What the limit is called in the headers that tell of it.
POLICY = "requests"


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
        self._redis = fail_fast_client(redis_url, PATIENCE_SECONDS)
        self._take = self._redis.register_script(SCRIPT.read_text())
        self._prefix = f"{prefix}rate:"
        self._limits = [per_second, burst]
        self._policy = f'"{POLICY}";q={burst};w={math.ceil(burst / per_second)}'
        self._clock = clock
        self._asks_again_at = 0.0

    def take(self, name: str) -> Mapping[str, str]:
        """Count one request of this caller, or refuse it; return headers that tell what is left.

        Without Redis none is refused, and nothing is known.
        """
        if self._clock() < self._asks_again_at:
            return {}
        try:
            milliseconds, left = self._take(keys=[self._prefix + name], args=self._limits)
        except RedisError:
            self._asks_again_at = self._clock() + REST_SECONDS
            return {}
        if milliseconds:
            seconds = max(1, math.ceil(milliseconds / 1000))
            raise TooManyRequests(seconds, self._told(0, seconds))
        per_second, burst = self._limits
        return self._told(left, math.ceil((burst - left) / per_second))

    def _told(self, left: int, seconds: int) -> dict[str, str]:
        """Tell how many requests are left, and in how many seconds there are more."""
        return {"RateLimit-Policy": self._policy, "RateLimit": f'"{POLICY}";r={left};t={seconds}'}

    def close(self) -> None:
        """Leave Redis."""
        self._redis.close()
