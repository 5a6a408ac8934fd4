"""The list of tasks: what each row says, the search, and acts on selected tasks."""

import json
import re
import shlex
from dataclasses import replace
from html import unescape
from urllib.parse import urlencode

import pytest

from overnight_server.control.keys import issue
from overnight_server.dashboard.screens import tasks
from overnight_server.domain.ids import show_dag, show_task
from tests.support.api_user import serve_api
from tests.support.browser import Browser
from tests.support.command import run
from tests.support.night import MARKUP, Night


def found(browser: Browser, query: str) -> set[str]:
    """Return the titles that a search finds."""
    page = browser.open(f"/tasks?{urlencode({'q': query})}")
    assert "Not understood" not in page.text, page.text
    return {text for text in TITLES if text in page.text}


TITLES = ("Plan the migration", "Port the payment", "Translate chapter 4", "Translate chapter 6")


def test_each_row_says_the_thing_that_matters(browser: Browser) -> None:
    text = browser.open("/tasks").text

    assert "A plan of six steps." in text
    assert "65 % · reading 61 changed files" in text
    assert "Waits for Deploy to staging" in text
    assert "Port the payment webhooks holds the lock repo:billing" in text
    assert "context_overflow the chapter has" in text
    assert "asks you Translate chapter 6" in text
    assert "Asks for more money · $2.00 spent so far" in text


def test_markup_in_titles_and_errors_stays_text(browser: Browser) -> None:
    page = browser.open("/tasks")

    assert MARKUP in page.text
    assert "<script>alert" not in page.source
    assert "<img src=x" not in page.source


QUERIES: list[tuple[str, set[str]]] = [
    ("state:dead", {"Translate chapter 4"}),
    ("status:completed", {"Plan the migration"}),
    ("type:translate", {"Translate chapter 4", "Translate chapter 6"}),
    ("tag:handbook", {"Translate chapter 4"}),
    ("lock:repo:billing", {"Port the payment"}),
    ("error:context_overflow", {"Translate chapter 4"}),
    ("waits:approval", {"Translate chapter 6"}),
    ("cost:>1", {"Translate chapter 6"}),
    ("cost:<0.5 state:done", {"Plan the migration"}),
    ("attempts:>0 type:translate", {"Translate chapter 4"}),
    ("chapter", {"Translate chapter 4", "Translate chapter 6"}),
    ('"chapter 6"', {"Translate chapter 6"}),
    ("age:<1w plan", {"Plan the migration"}),
    ("age:>1w", set()),
    ("source:web", set()),
    ("by:nobody", set()),
    ("project:none", set()),
]


def test_qualifiers_select_tasks(browser: Browser) -> None:
    assert [(query, found(browser, query)) for query, _ in QUERIES] == QUERIES


def test_what_is_not_understood_is_named_with_the_nearest(browser: Browser) -> None:
    text = browser.open("/tasks?q=stat:dead+cost:cheap").text

    assert "there is no stat:, the nearest is state:" in text
    assert "is no amount, such as >1 or <0.50" in text


LISTS = [
    *(urlencode({"tab": tab}) for tab in ("", "waiting", "active", "done", "dead", "cancelled")),
    *(
        urlencode({"q": query})
        for query in ("state:open", "state:dead,cancelled", "state:done cost:<0.5", "waits:lock")
    ),
]


def test_copy_as_command_lists_what_the_page_lists(
    browser: Browser, night: Night, night_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_api(night.deployment, night_url) as api:
        key = issue(night.deployment.app, night.user, name="cli")
        replace(api, user=night.user, key=key).take_commands(monkeypatch)
        lists = {query: both_lists(browser, f"/tasks?{query}") for query in LISTS}

    assert {query: by_command for query, (_, by_command) in lists.items()} == {
        query: of_page for query, (of_page, _) in lists.items()
    }
    assert all(of_page for of_page, _ in lists.values())


def both_lists(browser: Browser, address: str) -> tuple[list[str], list[str]]:
    """Return the ids that a page lists, and those that its command lists."""
    page = browser.open(address)
    of_page = [one[4:].partition("~")[0] for one in page.ids if one.startswith("row:")]
    [command] = re.findall('data-copy="(overnight list[^"]*)"', page.source)
    listed = run(*shlex.split(unescape(command))[1:], "--json")
    assert listed.exit_code == 0, listed.output
    return of_page, [task["id"] for task in json.loads(listed.stdout)]


def test_no_command_is_offered_that_would_list_something_else(browser: Browser) -> None:
    assert "data-copy=" in browser.open("/tasks?q=tag:night").source
    assert "data-copy=" not in browser.open("/tasks?q=waits:window").source
    page = browser.open("/tasks?q=tag:night+tag:handbook")
    assert "data-copy=" not in page.source
    assert "Not understood: tag:handbook: is left out:" in page.text


def test_a_graph_is_found_by_the_end_of_its_id(browser: Browser, night: Night) -> None:
    ending = show_dag(night.dag)[-6:]

    listed = browser.open(f"/tasks?q=graph:{ending}").text
    graph = browser.open(f"/graphs/{ending}").text

    assert "Plan the migration" in listed
    assert "Translate chapter 4" not in listed
    assert "2 of 6 tasks done." in graph
    browser.open("/graphs/ZZZZZZ", status=404)


def test_all_that_match_may_have_several_states(browser: Browser) -> None:
    active = browser.open("/tasks/all?tab=active&act=cancel").text
    ended = browser.open("/tasks/all?q=state:dead,cancelled&act=retry").text

    assert "1 task matches, 1 would change" in active
    assert "3 tasks match" in ended


def test_a_task_is_found_by_the_end_of_its_id(browser: Browser, night: Night) -> None:
    whole = night.id("plan")
    browser.http.follow_redirects = False

    response = browser.http.get(f"/tasks?q={whole}", headers={"Accept": "text/html"})

    assert response.headers["location"] == f"/tasks/{whole}"


def test_selected_tasks_are_cancelled_after_a_question(browser: Browser, night: Night) -> None:
    ids = [night.id("waiting"), night.id("locked"), night.id("plan")]
    query = urlencode([("act", "cancel"), *(("id", one) for one in ids), ("back", "/tasks")])

    page = browser.open(f"/tasks/selected?{query}")
    fields = {**page.form("/tasks/selected"), "act": "cancel"}
    browser.send("/tasks/selected", {**fields, "id": ids[:2]})  # type: ignore[dict-item]

    assert "Cancel 2 tasks" in page.text
    assert "1 other task does not fit" in page.text
    assert night.deployment.state(night.tasks["waiting"]) == "cancelled"
    assert night.deployment.state(night.tasks["locked"]) == "cancelled"
    browser.open("/tasks")
    assert browser.toast() == "2 tasks cancelled."


def test_all_that_match_are_retried_by_an_operation(browser: Browser, night: Night) -> None:
    page = browser.open("/tasks/all?q=state:dead&act=retry")

    assert "2 tasks match, 2 would change" in page.text
    browser.press(page, "/tasks/all", act="retry")
    assert browser.toast() == "The operation has started."
    [row] = night.deployment.rows("SELECT action, total FROM bulk_operations")
    assert dict(row) == {"action": "retry", "total": 2}


def test_very_many_tasks_that_match_are_counted_only_so_far(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = browser.open("/tasks/all").text
    monkeypatch.setattr(tasks, "MOST_COUNTED", 3)
    monkeypatch.setattr(tasks, "MOST_UNTYPED", 2)

    page = browser.open("/tasks/all")
    browser.press(page, "/tasks/all", act="cancel", number="2")

    assert "+" not in whole[: whole.index("would change")]
    assert "3+ tasks match, 3+ would change" in page.text
    assert "Type 3 to go on: there are more than that" in page.text
    assert browser.toast() == "Type 3 to change that many tasks. Nothing was changed."
    browser.press(page, "/tasks/all", act="cancel", number="3")
    assert browser.toast() == "The operation has started."


def test_an_action_that_fits_no_selected_task_would_change_none(browser: Browser) -> None:
    assert "2 tasks match, 0 would change" in browser.open("/tasks/all?q=state:dead").text


def test_a_row_is_rendered_again_as_a_part(browser: Browser, night: Night) -> None:
    page = browser.open("/tasks")
    ids = [one for one in page.ids if one.startswith("row:")]
    wanted = next(one for one in ids if night.id("port") in one)

    part = browser.http.get("/parts", params={"for": wanted}).text

    assert part.startswith(f'<tr id="{wanted}"')
    assert "reading 61 changed files" in part


def test_another_user_sees_nothing_of_it(browser: Browser, night: Night) -> None:
    browser.sign_in(issue(night.deployment.app, night.deployment.user(), name="theirs"))

    page = browser.open("/tasks")
    part = browser.http.get("/parts", params={"for": f"row:{night.id('port')}~1.2"}).text

    assert "Nothing is queued, and nothing was." in page.text
    assert 'overnight add "read the papers" --type echo' in page.text
    assert part == ""


def test_the_list_says_what_it_would_show_now(browser: Browser, night: Night) -> None:
    address = "/tasks?q=type:survey&tab=waiting"
    before = browser.open(address).source
    new = show_task(night.deployment.task(night.user, title="One more", type="survey"))

    asked = browser.http.get("/parts", params={"for": "matches:"}, headers={"X-Page": address})

    assert night.id("limited") in asked.text
    assert night.id("cancelled") not in asked.text
    assert new in asked.text
    assert new not in before


def test_why_a_task_waits_is_a_part_of_its_row(browser: Browser, night: Night) -> None:
    part = browser.http.get("/parts", params={"for": f"why:{night.id('locked')}"}).text
    none = browser.http.get("/parts", params={"for": "why:nothing"})

    assert "repo:billing" in part
    assert "<form" not in part
    assert none.text == ""
