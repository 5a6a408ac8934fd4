"""Pages read a bounded number of rows, however many tasks and dead letters a user has."""

import pytest

from overnight_server.control.keys import issue
from overnight_server.insight import tasks
from tests.support.browser import Browser
from tests.support.night import Night
from tests.support.statement_count import counted_statements


def statements(browser: Browser, path: str) -> int:
    """Return how many statements a page takes."""
    with counted_statements() as sent:
        browser.open(path)
    return len(sent)


def test_many_groups_of_dead_letters_are_read_with_the_statements_of_one(
    browser: Browser, night: Night
) -> None:
    browser.open("/dead")
    one = statements(browser, "/dead")
    night.deployment.run("UPDATE dead_letters SET fingerprint = 'alike' || id")
    page = browser.open("/dead")

    assert "2 dead letters, 2 causes." in page.text
    assert "Translate chapter 4" in page.text
    assert "Translate chapter 5" in page.text
    assert statements(browser, "/dead") == one


def test_a_group_has_the_fingerprint_that_its_letters_got_when_they_died(
    browser: Browser, night: Night
) -> None:
    [row] = night.deployment.rows("SELECT DISTINCT fingerprint FROM dead_letters")
    page = browser.open(f"/dead/{row['fingerprint']}")

    assert "2 tasks are longer than the model can read" in page.text


def test_a_search_that_matches_few_tasks_goes_on_with_the_next_page(
    browser: Browser, night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "MOST_SEARCHED", 1)
    page = browser.open("/tasks?tab=cancelled")
    assert "None of the latest tasks matches this search." in page.text

    seen = 0
    while "An old idea" not in page.text:
        [older] = [link for link in page.links if "before=" in link]
        page = browser.open(older)
        seen += 1
        assert seen < 10

    assert "Search older tasks" in page.text


@pytest.mark.parametrize(
    ("tab", "title"),
    [
        ("waiting", "Label 400 feedback notes"),
        ("active", "Port the payment webhooks"),
        ("dead", "Translate chapter 4"),
    ],
)
def test_tabs_for_which_there_is_an_index_show_tasks_of_any_age(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, tab: str, title: str
) -> None:
    monkeypatch.setattr(tasks, "MOST_SEARCHED", 1)
    page = browser.open(f"/tasks?tab={tab}")

    assert title in page.text
    assert "Search older tasks" not in page.text


def test_keys_are_listed_by_pages(browser: Browser, night: Night) -> None:
    for number in range(60):
        issue(night.deployment.app, night.user, name=f"machine {number}")
    first = browser.open("/keys")
    [older] = [link for link in first.links if "before=" in link]
    second = browser.open(older)

    assert "machine 59" in first.text
    assert "machine 0" not in first.text
    assert "machine 0" in second.text
    [revoke] = [link for link in second.links if link.endswith("/revoke")][-1:]
    assert "laptop" in browser.open(revoke).text


def test_a_report_that_takes_long_is_made_once_in_a_while(browser: Browser) -> None:
    first = statements(browser, "/fairness")

    assert statements(browser, "/fairness") < first / 2
    assert statements(browser, "/fairness?hours=8") > first / 2
