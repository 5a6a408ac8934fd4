"""Nobody exhausts an API process: by large bodies, by slow requests, or by many connections."""

import signal
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
from tests.support.rivals import Connect, lane_held_for_long, wait_until_blocked
from tests.support.wait import wait_until

GRAPHS = "/api/v1/dags"
TASKS = "/api/v1/tasks"
HALF = b"POST /api/v1/tasks HTTP/1.1\r\nHost: test\r\nX-Half"
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


def test_half_sent_requests_keep_nobody_out(
    deployment: Deployment, database_url: str, tmp_path: Path
) -> None:
    with ExitStack() as opened:
        api = opened.enter_context(api_process(deployment, database_url, tmp_path, open_files=256))
        key = api.key()
        for _ in range(400):
            connection = opened.enter_context(api.connect())
            with suppress(ConnectionError):
                connection.sendall(HALF)

        assert api.answers()
        assert [api.create(key) for _ in range(20)] == [201] * 20
        # More than a hundred connections were closed, and few lines say so.
        lines = api.log.read_text().splitlines()
        assert 0 < sum("queue=connection_closed" in line for line in lines) <= 20
        assert len(lines) < 100
        wait_until(lambda: "queue=log_lines_left_out" in api.log.read_text(), what="the count")


def test_a_request_that_does_not_arrive_in_time_is_ended(
    deployment: Deployment, database_url: str, tmp_path: Path
) -> None:
    short = {
        "OVERNIGHT_ALLOW_SHORT_CLOCKS": "true",
        "OVERNIGHT_REQUEST_HEADER_TIMEOUT": "0.5",
        "OVERNIGHT_REQUEST_BODY_TIMEOUT": "0.5",
    }
    with (
        api_process(deployment, database_url, tmp_path, **short) as api,
        api.connect() as silent,
        api.connect() as half_sent,
        api.begin(TASKS, 100, api.key()) as without_body,
        api.begin(TASKS, 100) as without_key,
    ):
        half_sent.sendall(HALF)
        without_body.sendall(b'{"title"')

        assert status_of(silent) == 0
        assert status_of(half_sent) == 0
        assert status_of(without_body) == 408
        # It is refused at once, and closed because the rest of its body does not arrive.
        assert [status_of(without_key), status_of(without_key)] == [401, 0]


def test_a_header_without_end_is_not_collected(api: ApiProcess) -> None:
    with api.connect() as connection:
        connection.sendall(HALF)
        with suppress(ConnectionError):
            while True:
                connection.sendall(b"x" * 65536)

    assert api.answers()


def test_a_body_that_arrives_with_its_header_is_no_long_header(api: ApiProcess) -> None:
    body = b'{"title": "a task"' + b" " * 100_000 + b"}"
    header = (
        f"X-API-Key: {api.key()}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )

    with api.connect() as connection:
        connection.sendall(f"POST {TASKS} HTTP/1.1\r\nHost: a\r\n{header}\r\n\r\n".encode() + body)
        assert status_of(connection) == 201


def test_a_long_header_is_refused_although_it_arrives_at_once(api: ApiProcess) -> None:
    with api.connect() as connection:
        connection.sendall(HALF + b": " + b"x" * 100_000 + b"\r\n\r\n")
        assert status_of(connection) == 0

    assert api.answers()


def test_health_checks_have_connections_of_their_own(
    deployment: Deployment, database_url: str, tmp_path: Path
) -> None:
    few = {"OVERNIGHT_MAX_CONNECTIONS": "4"}
    with api_process(deployment, database_url, tmp_path, **few) as api:
        key = api.key()
        with ExitStack() as in_progress:
            for _ in range(4):
                sent = in_progress.enter_context(api.begin(TASKS, 20, key, Expect="100-continue"))
                assert status_of(sent) == 100

            assert api.answers()
            assert api.create(key) == 503
            sent.sendall(b'{"title":"a task!!"}')
            assert status_of(sent) == 201

        wait_until(lambda: api.create(key) == 201, what="a connection to be free")


def test_requests_that_hang_when_the_process_must_end_get_503(
    deployment: Deployment, database_url: str, tmp_path: Path, connect: Connect
) -> None:
    user = deployment.user()
    # With the login of the watcher: Postgres shows nobody what the sessions of others wait for.
    login = {"OVERNIGHT_DATABASE_URL": database_url}
    with api_process(deployment, database_url, tmp_path, **login) as api:
        key, body = api.key(user), b'{"title":"a task!!"}'
        with (
            lane_held_for_long(database_url, user),
            api.begin(TASKS, len(body), key) as blocked,
            api.begin(TASKS, len(body), key, Expect="100-continue") as half_sent,
        ):
            blocked.sendall(body)
            wait_until_blocked(connect(role=None), "overnight-api")
            assert status_of(half_sent) == 100

            api.process.send_signal(signal.SIGTERM)

            assert [status_of(blocked), status_of(half_sent)] == [503, 503]
        assert api.process.wait(60) == 0
