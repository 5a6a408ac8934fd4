"""A Redis client that fails soon; the driver's default retries a dead server for seconds."""

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

TIMEOUT_SECONDS = 2


def fail_fast_client(url: str, seconds: float = TIMEOUT_SECONDS) -> Redis:
    """Return a client whose calls raise after `seconds` if Redis is dead or hangs."""
    return Redis.from_url(
        url,
        socket_timeout=seconds,
        socket_connect_timeout=seconds,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), retries=0),
    )
