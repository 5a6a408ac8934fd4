"""The rate limiter: its token buckets, and its behaviour without Redis, on an in-memory Redis."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest
from fakeredis import FakeRedis, FakeServer

from overnight.errors import TooManyRequests
from overnight_server.api.http import rate_limit
from overnight_server.api.http.rate_limit import PAUSE_AFTER_FAILURE_SECONDS, RateLimiter

PREFIX = "test:"
Limiter = Callable[[float, int], RateLimiter]


@dataclass
class Time:
    """The time that Redis and the limiter read."""

    seconds: float = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr("time.time", time)
    return time


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def limiter(server: FakeServer, time: Time, monkeypatch: pytest.MonkeyPatch) -> Limiter:
    monkeypatch.setattr(rate_limit, "fail_fast_client", lambda *_: FakeRedis(server=server))
    return lambda per_second, burst: RateLimiter(
        "redis://unused", PREFIX, per_second=per_second, burst=burst, clock=time
    )


def test_requests_above_the_burst_are_refused_with_the_time_to_wait(limiter: Limiter) -> None:
    rates = limiter(0.5, 3)

    left = [rates.take("ada")["RateLimit"] for _ in range(3)]
    with pytest.raises(TooManyRequests) as refused:
        rates.take("ada")

    assert left == [f'"requests";r={n};t={2 * (3 - n)}' for n in (2, 1, 0)]
    assert refused.value.retry_after == 2


def test_a_costly_request_takes_several_tokens(limiter: Limiter, time: Time) -> None:
    rates = limiter(1, 10)

    assert rates.take("ada", 4)["RateLimit"].startswith('"requests";r=6;')
    assert rates.take("ada", 4)["RateLimit"].startswith('"requests";r=2;')
    with pytest.raises(TooManyRequests) as refused:
        rates.take("ada", 4)
    assert refused.value.retry_after == 2
    # What is left pays for cheaper requests.
    assert rates.take("ada")["RateLimit"].startswith('"requests";r=1;')


def test_a_full_bucket_pays_for_any_request(limiter: Limiter) -> None:
    rates = limiter(1, 3)

    assert rates.take("ada", 50)["RateLimit"].startswith('"requests";r=0;')


def test_each_caller_has_a_bucket_of_its_own(limiter: Limiter) -> None:
    rates = limiter(0.01, 1)
    rates.take("ada")

    assert rates.take("bob")


def test_all_processes_share_the_buckets(limiter: Limiter) -> None:
    limiter(0.01, 1).take("ada")

    with pytest.raises(TooManyRequests):
        limiter(0.01, 1).take("ada")


def test_processes_take_tokens_in_advance_but_no_more_than_there_are(limiter: Limiter) -> None:
    burst = 1_000
    first, second = limiter(0.001, burst), limiter(0.001, burst)
    accepted = calls = 0
    for rates, requests in ((first, 10), (second, burst), (first, burst)):
        with suppress(TooManyRequests):
            for _ in range(requests):
                calls += rates.take_held("ada") is None and bool(rates.take("ada"))
                accepted += 1

    assert accepted == burst
    assert calls < burst / 5


def test_a_bucket_fills_with_time(limiter: Limiter, time: Time) -> None:
    rates = limiter(2, 3)
    for _ in range(3):
        rates.take("ada")

    time.seconds += 0.5
    headers = rates.take("ada")

    assert headers["RateLimit"].startswith('"requests";r=0;')
    with pytest.raises(TooManyRequests):
        rates.take("ada")


def test_a_bucket_never_holds_more_than_the_burst(limiter: Limiter, time: Time) -> None:
    rates = limiter(2, 3)
    rates.take("ada")

    # Full after 0.5 s, and not expired yet after 1.4 s.
    time.seconds += 1.4

    assert rates.take("ada")["RateLimit"].startswith('"requests";r=2;')


def test_a_refused_request_uses_no_token(limiter: Limiter, time: Time) -> None:
    rates = limiter(1, 1)
    rates.take("ada")
    for _ in range(10):
        with pytest.raises(TooManyRequests):
            rates.take("ada")

    time.seconds += 1

    assert rates.take("ada")


def test_a_bucket_is_deleted_once_it_is_full(limiter: Limiter, server: FakeServer) -> None:
    limiter(0.1, 4).take("ada")

    with FakeRedis(server=server) as client:
        assert client.ttl(f"{PREFIX}rate:ada") == 40


def test_without_redis_requests_are_allowed_and_redis_is_not_called_for_a_while(
    limiter: Limiter, server: FakeServer, time: Time
) -> None:
    rates = limiter(0.01, 1)
    rates.take("ada")
    server.connected = False
    allowed = [rates.take("ada") for _ in range(3)]
    server.connected = True
    during_the_pause = rates.take("ada")
    time.seconds += PAUSE_AFTER_FAILURE_SECONDS

    with pytest.raises(TooManyRequests):
        rates.take("ada")
    assert [*allowed, during_the_pause] == [{}] * 4
