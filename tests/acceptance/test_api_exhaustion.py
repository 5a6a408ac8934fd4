"""Nobody exhausts an API process: by large bodies, by slow requests, or by many connections."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from overnight_server.api.http.request_body import COPIES, LARGE, MAX_BODY_MEMORY
from overnight_server.api.http.request_memory import CALLERS_SHARE
from overnight_server.settings import load
from tests.support.api_process import ApiProcess, api_process, status_of
from tests.support.api_user import NO_FILE
from tests.support.deployment import Deployment

GRAPHS = "/api/v1/dags"
MEGABYTE = 1024 * 1024


@pytest.fixture
def api(deployment: Deployment, database_url: str, tmp_path: Path) -> Iterator[ApiProcess]:
    with api_process(deployment, database_url, tmp_path) as api:
        yield api


def wide_json(size: int) -> bytes:
    """Return JSON of lists that each take three bytes, and many times as much once parsed."""
    return b'{"tasks": [' + b"[]," * (size // 3 - 10) + b"[]]}"


def send(api: ApiProcess, body: bytes, key: str = "") -> int:
    """Send a large body; return the status of the response."""
    with api.begin(GRAPHS, len(body), key) as connection:
        with suppress(ConnectionError):
            connection.sendall(body)
        return status_of(connection)


def test_large_bodies_without_a_key_are_not_read(api: ApiProcess) -> None:
    body = wide_json(15 * MEGABYTE)
    before = api.peak_memory()

    with ThreadPoolExecutor(30) as senders:
        statuses = list(senders.map(lambda _: send(api, body), range(30)))

    assert statuses == [401] * 30
    # Thirty of them have 28 times the bytes of the largest body.
    assert api.peak_memory() - before < 4 * LARGE.max_bytes


def test_json_with_too_many_values_is_refused_before_it_is_parsed(api: ApiProcess) -> None:
    body, key = wide_json(15 * MEGABYTE), api.key()
    before = api.peak_memory()

    statuses = [send(api, body, key) for _ in range(3)]

    assert statuses == [400] * 3
    assert api.peak_memory() - before < 8 * LARGE.max_bytes


def test_the_bodies_of_one_user_leave_room_for_others(api: ApiProcess) -> None:
    ada = api.deployment.user()
    share = load({}, dotenv=NO_FILE).request_memory_mb * MEGABYTE * CALLERS_SHARE
    assert share >= MAX_BODY_MEMORY
    fitting = int(share // (COPIES * LARGE.max_bytes))
    with ExitStack() as connections:
        for _ in range(fitting):
            sent = connections.enter_context(
                # Two keys of one user share what the user may have.
                api.begin(GRAPHS, LARGE.max_bytes, api.key(ada), Expect="100-continue")
            )
            assert status_of(sent) == 100
        one_more = connections.enter_context(api.begin(GRAPHS, LARGE.max_bytes, api.key(ada)))

        assert status_of(one_more) == 429
        assert api.create(api.key()) == 201
        # A small body of the same user needs no room.
        assert api.create(api.key(ada)) == 201
