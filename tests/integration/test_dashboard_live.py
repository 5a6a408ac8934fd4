"""The live stream of the dashboard names what has changed, as long as the session lasts."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest

from overnight_server.domain.ids import show_task
from tests.support.deployment import Deployment
from tests.support.live_api import LiveApi, serve


@pytest.fixture
def served(deployment: Deployment, database_url: str) -> Iterator[LiveApi]:
    with serve(deployment, database_url) as live:
        yield live


@contextmanager
def signed_in(served: LiveApi) -> Iterator[httpx2.Client]:
    """Open a browser with a session."""
    with httpx2.Client(base_url=served.url, timeout=30) as client:
        response = client.post(
            "/sign-in", data={"key": served.key}, headers={"Sec-Fetch-Site": "same-origin"}
        )
        assert response.status_code == 303, response.text
        yield client


def messages(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield the kind and the data of each message."""
    kind = ""
    for line in lines:
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        if line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


def test_a_change_is_named_and_the_part_shows_it(served: LiveApi) -> None:
    with signed_in(served) as client, client.stream("GET", "/live") as response:
        stream = messages(response.iter_lines())
        assert next(stream)[0] == "hello"
        task = show_task(served.deployment.task(served.user, title="read the papers"))

        kind, data = next(stream)

        part = client.get("/parts", params={"for": "pill:"}).text
    assert kind == "change"
    assert task in data["changed"]
    assert "<b>1</b> waiting" in part


def test_without_a_session_there_is_no_stream(served: LiveApi) -> None:
    assert httpx2.get(f"{served.url}/live").status_code == 401


def test_the_end_of_the_session_ends_the_stream(served: LiveApi) -> None:
    with signed_in(served) as client, client.stream("GET", "/live") as response:
        stream = messages(response.iter_lines())
        next(stream)
        served.deployment.run("UPDATE sessions SET expires_at = clock()")
        add = threading.Thread(target=served.deployment.task, args=(served.user,))
        add.start()

        rest = list(stream)

        add.join()
    assert rest == []
