"""The page of one task: its story, its reasons with their acts, its runs, and editing it."""

import json
from datetime import UTC, datetime

from overnight_server.control.keys import issue
from tests.support.browser import Browser
from tests.support.night import MARKUP, Night


def test_each_task_tells_its_story(browser: Browser, night: Night) -> None:
    texts = {
        name: browser.open(f"/tasks/{night.id(name)}").text
        for name in ("migrate", "port", "locked", "chapter 4", "cancelled", "asks", "drop")
    }

    assert "with the second run. It worked 1 h 19" in texts["migrate"]
    assert "Run 1: crashed (an attempt spent)." in texts["migrate"]
    assert "65 % reading 61 changed files" in texts["port"]
    assert (
        "It has not started: repo:billing is held by Port the payment webhooks" in texts["locked"]
    )
    assert "after 1 attempt: context_overflow the chapter has" in texts["chapter 4"]
    assert "Cancelled on request." in texts["cancelled"]
    assert "Allow $1.00 more" in texts["asks"]
    assert "It waits for 1 other task: Deploy to staging (pending) to complete" in texts["drop"]


def test_texts_of_handlers_and_users_stay_text(browser: Browser, night: Night) -> None:
    page = browser.open(f"/tasks/{night.id('marked')}")

    assert MARKUP in page.text
    assert "<script>alert" not in page.source
    assert "<img src=x" not in page.source


def test_a_waiting_task_is_cancelled_at_once_and_that_is_undone(
    browser: Browser, night: Night
) -> None:
    page = browser.open(f"/tasks/{night.id('locked')}")
    page = browser.press(page, f"/tasks/{night.id('locked')}/cancel")
    assert night.deployment.state(night.tasks["locked"]) == "cancelled"
    assert browser.toast() == "The task is cancelled."

    browser.press(page, f"/tasks/{night.id('locked')}/retry")

    assert night.deployment.state(night.tasks["locked"]) == "ready"


def test_a_running_task_is_asked_to_stop_after_a_question(browser: Browser, night: Night) -> None:
    address = f"/tasks/{night.id('port')}/cancel"
    page = browser.open(address)

    browser.press(page, address)

    assert "1 task waits for it" in page.text
    assert browser.toast() == "The task was asked to stop."
    assert night.deployment.row(night.tasks["port"])["cancel_requested_at"] is not None


def test_a_dead_task_is_edited_and_retried(browser: Browser, night: Night) -> None:
    address = f"/tasks/{night.id('chapter 4')}/edit"
    page = browser.open(address)

    browser.press(page, address, payload='{"model": "larger"}', priority="1", timeout_minutes="20")

    row = night.deployment.row(night.tasks["chapter 4"])
    assert (row["state"], row["payload"]) == ("ready", {"model": "larger"})
    assert (row["priority"], row["timeout_seconds"]) == (5, 1200)
    assert browser.toast() == "The task was changed and waits to run again."


def test_a_wrong_value_is_named_and_nothing_is_lost(browser: Browser, night: Night) -> None:
    address = f"/tasks/{night.id('locked')}/edit"
    fields = browser.open(address).form(address)

    response = browser.send(address, {**fields, "payload": "{", "title": "another title"})

    assert response.status_code == 422
    assert "is not JSON" in response.text
    assert "another title" in response.text
    assert night.deployment.row(night.tasks["locked"])["title"] == "Regenerate the API client"


def test_an_edit_of_an_old_version_shows_both(browser: Browser, night: Night) -> None:
    address = f"/tasks/{night.id('locked')}/edit"
    fields = browser.open(address).form(address)
    browser.send(address, {**fields, "payload": '{"a": 1}'})

    response = browser.send(address, {**fields, "payload": '{"b": 2}'})

    assert response.status_code == 412
    assert "Somebody changed the task meanwhile" in response.text
    assert "&#34;a&#34;" in response.text
    assert night.deployment.row(night.tasks["locked"])["payload"] == {"a": 1}


def test_a_masked_secret_is_never_saved(browser: Browser, night: Night) -> None:
    night.deployment.run(
        "UPDATE tasks SET payload = CAST(:payload AS jsonb) WHERE id = :id",
        payload=json.dumps({"password": "hunter2", "n": 1}),
        id=night.tasks["locked"],
    )
    address = f"/tasks/{night.id('locked')}/edit"
    page = browser.open(address)
    fields = page.form(address)

    response = browser.send(address, {**fields, "payload": '{"password": "***", "n": 2}'})

    assert "hunter2" not in page.source
    assert response.status_code == 422
    assert night.deployment.row(night.tasks["locked"])["payload"]["password"] == "hunter2"


def test_the_form_names_the_zone_of_its_times(browser: Browser, night: Night) -> None:
    address = f"/tasks/{night.id('locked')}/edit"
    browser.http.cookies.set("overnight_zone", "Europe/Berlin")
    browser.http.cookies.set("overnight_clock", "utc")
    page = browser.open(address)

    browser.press(page, address, deadline_at="2030-01-31T22:00")

    assert "Deadline, UTC" in page.text
    assert "Not before, UTC" in page.text
    deadline = night.deployment.row(night.tasks["locked"])["deadline_at"]
    assert deadline == datetime(2030, 1, 31, 22, tzinfo=UTC)
    browser.http.cookies.set("overnight_clock", "zone")
    page = browser.open(address)
    assert "Deadline, Berlin" in page.text
    assert page.form(address)["deadline_at"] == "2030-01-31T23:00"


def test_the_priority_is_set_and_taken_back(browser: Browser, night: Night) -> None:
    address = f"/tasks/{night.id('locked')}/priority"
    page = browser.open(f"/tasks/{night.id('locked')}")
    before = night.deployment.row(night.tasks["locked"])["priority"]

    page = browser.press(page, address, priority="1")
    changed = night.deployment.row(night.tasks["locked"])["priority"]
    undo = [form for form in page.forms if form["action"] == address and "score" in form]
    browser.send(address, undo[0])

    assert changed < before
    assert night.deployment.row(night.tasks["locked"])["priority"] == before


def test_the_end_of_an_id_leads_to_the_task(browser: Browser, night: Night) -> None:
    page = browser.open(f"/tasks/{night.id('plan')[-6:]}")

    assert "Plan the migration" in page.text


def test_the_task_of_another_user_does_not_exist(browser: Browser, night: Night) -> None:
    browser.sign_in(issue(night.deployment.app, night.deployment.user(), name="theirs"))

    browser.open(f"/tasks/{night.id('plan')}", status=404)
    browser.open(f"/tasks/{night.id('plan')}/edit", status=404)
    browser.open("/tasks/nonsense", status=404)
    fields = browser.open("/me").form("/look")
    assert browser.send(f"/tasks/{night.id('waiting')}/cancel", fields).status_code == 404
    assert night.deployment.state(night.tasks["waiting"]) == "ready"
