"""The request rate limit: one token bucket per caller in Redis, shared by all API processes.

Redis must not slow down or fail a submit. If it does not respond within 50 ms, the request is not
counted, and Redis is not called again for 5 seconds.
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from redis import RedisError

from overnight.errors import TooManyRequests
from overnight_server.wakeups.redis_client import fail_fast_client

SCRIPT = Path(__file__).with_name("token_bucket.lua")
TIMEOUT_SECONDS = 0.05
PAUSE_AFTER_FAILURE_SECONDS = 5.0
#: The name of the limit in the RateLimit headers.
POLICY = "requests"


class RateLimiter:
    """Counts requests per caller and refuses those above the limit."""

    def __init__(
        self,
        redis_url: str,
        prefix: str,
        *,
        per_second: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = fail_fast_client(redis_url, TIMEOUT_SECONDS)
        self._take = self._redis.register_script(SCRIPT.read_text())
        self._prefix = f"{prefix}rate:"
        self._limits = [per_second, burst]
        self._policy = f'"{POLICY}";q={burst};w={math.ceil(burst / per_second)}'
        self._clock = clock
        self._paused_until = 0.0

    def take(self, caller: str) -> Mapping[str, str]:
        """Count one request of a caller; return the RateLimit headers of the response.

        Raises TooManyRequests above the limit. While Redis does not respond, every request is
        allowed and there are no headers.
        """
        if self._clock() < self._paused_until:
            return {}
        try:
            milliseconds, left = self._take(keys=[self._prefix + caller], args=self._limits)
        except RedisError:
            self._paused_until = self._clock() + PAUSE_AFTER_FAILURE_SECONDS
            return {}
        if milliseconds:
            seconds = max(1, math.ceil(milliseconds / 1000))
            raise TooManyRequests(seconds, self._headers(0, seconds))
        per_second, burst = self._limits
        return self._headers(left, math.ceil((burst - left) / per_second))

    def _headers(self, left: int, seconds: int) -> dict[str, str]:
        """Return headers with the requests left and the seconds until the bucket is full."""
        return {"RateLimit-Policy": self._policy, "RateLimit": f'"{POLICY}";r={left};t={seconds}'}

    def close(self) -> None:
        """Close the connections to Redis."""
        self._redis.close()
