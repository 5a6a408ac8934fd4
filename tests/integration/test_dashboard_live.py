"""The live stream of the dashboard names what has changed, as long as the session lasts."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlencode

import httpx2
import pytest
from starlette.requests import Request

from overnight_server.api.http.expensive_calls import MAX_CALLS_PER_CALLER
from overnight_server.dashboard.routes import page_routes
from overnight_server.dashboard.screen import Cost
from overnight_server.domain.ids import show_dag, show_task
from tests.support.browser import Browser
from tests.support.deployment import Deployment
from tests.support.live_api import LiveApi, serve
from tests.support.night import Night


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


def test_a_request_has_few_expensive_parts(browser: Browser) -> None:
    nights = [f"night:2026-11-{day:02}" for day in range(1, 5)]

    three = browser.http.get("/parts", params={"for": nights[:3]})
    four = browser.http.get("/parts", params={"for": [*nights, "pill:"]})

    assert three.status_code == 200
    assert three.text.count('id="night:') == 3
    assert four.status_code == 400
    assert "3 of them in one request" in four.text


def test_expensive_parts_and_pages_wait_in_the_line_for_them(
    browser: Browser, night: Night
) -> None:
    expensive = browser.http.app.state.dependencies.expensive  # type: ignore[attr-defined]
    task = night.id("waiting")
    with ExitStack() as stack:
        for _ in range(MAX_CALLS_PER_CALLER):
            stack.enter_context(expensive.place(str(night.user)))

        refused = [
            browser.http.get("/parts", params={"for": part}).status_code
            for part in ("night:", f"task:{task}", f"why:{task}", f"graph:{show_dag(night.dag)}~")
        ]
        pages = [browser.http.get(path).status_code for path in ("/", "/nights/2026-11-16")]
        cheap = browser.http.get("/parts", params={"for": ["pill:", "queue:"]})

    assert refused == [429] * 4
    assert pages == [429] * 2
    assert cheap.status_code == 200


def test_a_request_costs_what_its_parts_cost() -> None:
    [route] = [route for route in page_routes() if route.path == "/parts"]

    def cost(*wanted: str) -> Cost:
        query = urlencode([("for", one) for one in wanted])
        return route.cost(Request({"type": "http", "query_string": query.encode()}))

    assert cost("pill:") == Cost(1, is_expensive=False)
    assert cost("pill:", "pill:", "queue:", "row:x~1.2") == Cost(7, is_expensive=False)
    assert cost("night:", "pill:") == Cost(21, is_expensive=True)
    assert cost("no-such-part:") == Cost(1, is_expensive=False)


def test_parts_that_are_expensive_have_a_gap(browser: Browser, night: Night) -> None:
    found = {
        path: browser.open(path).source
        for path in ("/", f"/tasks/{night.id('waiting')}", f"/graphs/{show_dag(night.dag)}")
    }
    assert 'id="night:" data-part data-gap="5"' in found["/"]
    assert all("data-gap=" in source for source in found.values())
