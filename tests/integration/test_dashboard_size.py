"""The dashboard is small: what a page loads when it is the first, and how it is sent."""

import gzip
from collections.abc import Mapping

import pytest

from overnight_server.control.keys import issue
from overnight_server.dashboard.assets import contents
from overnight_server.dashboard.form_tokens import make_token
from tests.support.browser import Browser
from tests.support.night import Night
from tests.support.night_pages import every_page
from tests.support.statement_count import counted_statements

KB = 1000
#: Before compression the goal is 100 KB: Morning, a night and Me are above it.
FIRST_PAGE, FIRST_PAGE_SENT = 115 * KB, 30 * KB
#: Keeping lists still while they change takes a third of the script.
STYLE_SENT, SCRIPT_SENT = 9 * KB, 8 * KB
#: More tasks than a page shows.
MANY_TASKS = 60
#: A page with all the rows that fit on it is larger than FIRST_PAGE before it is compressed.
FULL_LIST = 140 * KB
#: How many statements each page may take. Most take fewer than eight; those here read the lives of
#: tasks, of a night, or the whole queue, each with a bounded number of statements.
MOST_STATEMENTS = 8
MORE_STATEMENTS = {
    "/": 30,
    "/nights/{day}": 30,
    "/evening": 45,
    "/fairness": 15,
    "/limits": 12,
    "/queue": 24,
    "/queue/forecast": 13,
    "/tasks": 28,
    "/tasks/{task_id}": 24,
}


def add_tasks(night: Night, number: int) -> None:
    """Add tasks that wait, as a person writes them."""
    for place in range(number):
        night.deployment.task(
            night.user, title=f"Translate chapter {place} of the handbook", type="translate"
        )


def sent_size(browser: Browser, path: str) -> int:
    """Return how many bytes a browser gets for an address."""
    with browser.http.stream("GET", path) as response:
        assert response.status_code == 200, path
        return sum(len(chunk) for chunk in response.iter_raw())


def test_a_first_page_is_small(browser: Browser, night: Night) -> None:
    assets = {name: len(content) for name, content in contents().items()}
    sent = {name: len(gzip.compress(content, 5)) for name, content in contents().items()}

    assert sent["overnight.css"] <= STYLE_SENT
    assert sent["overnight.js"] <= SCRIPT_SENT
    too_large = {}
    for name, path in every_page(night).items():
        size = sum(assets.values()) + len(browser.open(path).source.encode())
        total = sum(sent.values()) + sent_size(browser, path)
        if size > FIRST_PAGE or total > FIRST_PAGE_SENT:
            too_large[name] = (size, total)
    assert not too_large


def test_a_page_with_many_tasks_is_sent_small(browser: Browser, night: Night) -> None:
    assets = sum(len(content) for content in contents().values())
    sent = sum(len(gzip.compress(content, 5)) for content in contents().values())
    add_tasks(night, MANY_TASKS)
    too_large = {}
    for name, path in every_page(night).items():
        size = assets + len(browser.open(path).source.encode())
        total = sent + sent_size(browser, path)
        if size > FULL_LIST or total > FIRST_PAGE_SENT:
            too_large[name] = (size, total)
    assert not too_large


def test_the_statements_of_a_page_do_not_grow_with_the_tasks(
    browser: Browser, night: Night
) -> None:
    pages = every_page(night)
    few = statements(browser, pages)
    add_tasks(night, 200)
    many = statements(browser, pages)

    # The tasks of the night have more causes than those that take their places on a page.
    assert not {name: (few[name], many[name]) for name in pages if many[name] > few[name]}
    too_many = {
        name: number
        for name, number in many.items()
        if number > MORE_STATEMENTS.get(name, MOST_STATEMENTS)
    }
    assert not too_many


def statements(browser: Browser, pages: Mapping[str, str]) -> dict[str, int]:
    """Return how many statements each page takes."""
    numbers = {}
    for name, path in pages.items():
        browser.open(path)
        with counted_statements() as sent:
            browser.open(path)
        numbers[name] = len(sent)
    return numbers


@pytest.mark.parametrize(
    ("path", "accepted", "encoding"),
    [
        ("/tasks", "gzip", "gzip"),
        ("/tasks", "identity", None),
        ("/sign-in", "gzip", "gzip"),
        # Too small.
        ("/health", "gzip", None),
    ],
)
def test_pages_are_compressed_for_those_who_take_it(
    browser: Browser, path: str, accepted: str, encoding: str | None
) -> None:
    response = browser.http.get(path, headers={"Accept-Encoding": accepted})

    assert response.status_code == 200
    assert response.headers.get("content-encoding") == encoding


def test_json_is_compressed_unless_an_etag_names_its_bytes(browser: Browser, night: Night) -> None:
    key = issue(night.deployment.app, night.user, name="phone")
    headers = {"Accept-Encoding": "gzip", "X-API-Key": key}
    listed = browser.http.get("/api/v1/tasks", headers=headers)
    one = browser.http.get(f"/api/v1/tasks/{night.id('migrate')}", headers=headers)

    assert listed.headers["content-encoding"] == "gzip"
    assert listed.headers["vary"] == "Accept-Encoding"
    assert listed.json()
    assert "etag" in one.headers
    assert "content-encoding" not in one.headers


def test_the_token_of_a_form_is_another_on_each_page(browser: Browser) -> None:
    first, second = (browser.open("/queue").form("/pause") for _ in range(2))

    assert first["token"] != second["token"]
    assert browser.send("/pause", first).status_code == 303
    assert browser.send("/pause", {**first, "token": make_token("another")}).status_code == 403
    assert browser.send("/pause", {**first, "token": first["token"][:-2]}).status_code == 403
