"""A Redis client that answers soon or fails soon; the usual one tries again for seconds."""

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

TIMEOUT_SECONDS = 2


def fail_fast_client(url: str, seconds: float = TIMEOUT_SECONDS) -> Redis:
    """Connect so that a dead or hung Redis costs each call at most a moment."""
    return Redis.from_url(
        url,
        socket_timeout=seconds,
        socket_connect_timeout=seconds,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), retries=0),
    )
