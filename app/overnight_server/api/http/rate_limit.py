"""The request rate limit: one token bucket per caller in Redis, shared by all API processes.

A caller is a user, whatever the key, or the claim of a run. A request that needs much computation
takes several tokens.

A process takes a twentieth of the tokens that are left and keeps those that it does not need yet,
so that most requests do not call Redis. With few tokens left it takes them one by one.

Redis must not slow down or fail a submit. If it does not respond within 50 ms, the request is not
counted, and Redis is not called again for 5 seconds.
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock

from redis import RedisError

from overnight.errors import TooManyRequests
from overnight_server.wakeups.redis_client import fail_fast_client

SCRIPT = Path(__file__).with_name("token_bucket.lua")
TIMEOUT_SECONDS = 0.05
PAUSE_AFTER_FAILURE_SECONDS = 5.0
MAX_CALLERS = 10_000
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
        # The tokens that this process holds for a caller, and how many were left in Redis.
        self._held: dict[str, tuple[int, int]] = {}
        self._lock = Lock()

    def take(self, caller: str, cost: int = 1) -> Mapping[str, str]:
        """Count one request of a caller as `cost` tokens; return the response's RateLimit headers.

        Raises TooManyRequests above the limit. While Redis does not respond, every request is
        allowed and there are no headers.
        """
        if (headers := self.take_held(caller, cost)) is not None:
            return headers
        cost = self._payable(cost)
        try:
            taken, left, milliseconds = self._take(
                keys=[self._prefix + caller], args=[*self._limits, cost]
            )
        except RedisError:
            self._paused_until = self._clock() + PAUSE_AFTER_FAILURE_SECONDS
            return {}
        if not taken:
            seconds = max(1, math.ceil(milliseconds / 1000))
            raise TooManyRequests(seconds, self._headers(left, seconds))
        with self._lock:
            if len(self._held) >= MAX_CALLERS:
                self._held.clear()
            held, _ = self._held.get(caller, (0, 0))
            self._held[caller] = (held + taken - cost, left)
        return self._headers_of(left + taken - cost)

    def take_held(self, caller: str, cost: int = 1) -> Mapping[str, str] | None:
        """Do the same without a call of Redis; return None if Redis must be called."""
        if self._clock() < self._paused_until:
            return {}
        cost = self._payable(cost)
        with self._lock:
            held, left = self._held.get(caller, (0, 0))
            if held < cost:
                return None
            self._held[caller] = (held - cost, left)
        return self._headers_of(left + held - cost)

    def _payable(self, cost: int) -> int:
        """Return a cost that a full bucket can pay."""
        return min(cost, int(self._limits[1]))

    def _headers_of(self, left: int) -> dict[str, str]:
        per_second, burst = self._limits
        return self._headers(left, math.ceil((burst - left) / per_second))

    def _headers(self, left: int, seconds: int) -> dict[str, str]:
        """Return headers with the requests left and the seconds until the bucket is full."""
        return {"RateLimit-Policy": self._policy, "RateLimit": f'"{POLICY}";r={left};t={seconds}'}

    def close(self) -> None:
        """Close the connections to Redis."""
        self._redis.close()
