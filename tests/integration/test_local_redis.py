"""The embedded Redis: private, and durable across restarts."""

import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.exceptions import AuthenticationError

from overnight_server.local.redis import EmbeddedRedis
from overnight_server.wakeups.redis_client import fail_fast_client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    # A quote and a blank, because the path goes into a configuration file.
    with EmbeddedRedis(tmp_path / 'a "quoted" place') as running:
        yield running


def test_redis_requires_the_password_and_never_evicts_keys(server: EmbeddedRedis) -> None:
    with Redis.from_url(server.url) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    with (
        fail_fast_client(f"redis://127.0.0.1:{server.server.port}") as anonymous,
        pytest.raises(AuthenticationError),
    ):
        anonymous.ping()


def test_the_redis_password_is_in_no_argument_and_no_readable_file(server: EmbeddedRedis) -> None:
    password = server.server.credentials.password("redis")
    configuration = server.directory / "redis" / "redis.conf"

    assert password in configuration.read_text()
    assert stat.S_IMODE(configuration.stat().st_mode) == 0o600
    assert password not in str(psutil.Process(server.pid).cmdline())


def test_a_restart_finds_the_data_again_on_the_same_port(server: EmbeddedRedis) -> None:
    with Redis.from_url(server.url) as client:
        client.rpush("list", *range(100))

        server.stop()
        server.start()

        assert client.llen("list") == 100


def test_redis_responds_after_a_crash_and_a_restart(server: EmbeddedRedis) -> None:
    pid = server.pid

    server.stop(immediate=True)
    assert not psutil.pid_exists(pid)
    server.start()

    with Redis.from_url(server.url) as client:
        assert client.ping()


def test_a_hung_server_can_be_stopped(server: EmbeddedRedis) -> None:
    pid = server.pid
    psutil.Process(pid).suspend()

    server.stop(immediate=True)

    assert not psutil.pid_exists(pid)
