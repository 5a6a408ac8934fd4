"""`overnight bulk` against the real API."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from overnight_server.cli.main import app
from overnight_server.cli.terminal import output
from overnight_server.cli.terminal.failures import Code
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Raised
from overnight_server.maintenance.bulk import run_bulks
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import Deployment


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        api_user.deployment.agent()
        yield api_user


@pytest.fixture(autouse=True)
def place(api_user: ApiUser, empty_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place whose commands reach this API and nothing else; waiting lets maintenance work."""

    def sleep(_seconds: float) -> None:
        run_bulks(api_user.deployment.dispatcher)

    api_user.take_commands(monkeypatch, sleep=sleep)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the input a terminal, so that commands ask for confirmation."""
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is not sys.stdout)


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ("bulk", *arguments), input=stdin, prog_name="overnight")


def read(*arguments: str) -> Any:
    shown = run(*arguments, "--json")
    assert shown.exit_code == 0, shown.stderr
    return json.loads(shown.stdout)


def state(api_user: ApiUser, task: str) -> str:
    return api_user.deployment.state(api_user.row_id(task))


def dead(api_user: ApiUser) -> str:
    run_ = api_user.deployment.running(api_user.user, max_attempts=1)
    api_user.deployment.settle(run_, Raised("auth_failure", "no"))
    return show_task(run_.claim.task_id)


def test_a_preview_shows_the_count_and_changes_nothing(api_user: ApiUser) -> None:
    task = api_user.created(tags=["a"])["id"]

    shown = run("cancel", "--tag", "a", "--preview")

    assert shown.exit_code == 0
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["action", "cancel"],
        ["matching", "1"],
        ["applies", "to", "1"],
        ["examples", task],
    ]
    assert read("cancel", "--tag", "a", "--preview") == {
        "action": "cancel",
        "total": 1,
        "applies": 1,
        "sample": [task],
    }
    assert state(api_user, task) == "ready"


def test_failed_tasks_are_retried_without_confirmation(api_user: ApiUser) -> None:
    failed = dead(api_user)

    retried = read("retry", "--state", "failed", "--yes")

    assert retried["preview"]["applies"] == 1
    assert (retried["operation"]["state"], retried["operation"]["changed"]) == ("completed", 1)
    assert state(api_user, failed) == "ready"
    plain = run("show", retried["operation"]["id"][-6:])
    assert "1 of 1" in plain.stdout
    assert "status=failed" in plain.stdout


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("answer", "code"), [("y\n", Code.OK), ("n\n", Code.WAIT_TIMED_OUT)])
def test_a_terminal_asks_for_confirmation(api_user: ApiUser, answer: str, code: Code) -> None:
    task = api_user.created(title="late", priority=4)["id"]

    shown = run("reprioritise", "--title", "LATE", "--priority", "2", stdin=answer)

    assert shown.exit_code == code, shown.stderr
    assert "1 task matches, reprioritise applies to 1." in shown.stderr
    assert api_user.deployment.row(api_user.row_id(task))["priority"] == (
        20 if code is Code.OK else 70
    )
    assert ("completed" in shown.stdout) is (code is Code.OK)


def test_without_a_terminal_yes_is_required(api_user: ApiUser) -> None:
    task = api_user.created()["id"]

    shown = run("cancel", "--type", "echo")

    assert shown.exit_code == Code.USAGE
    assert "--yes" in shown.stderr
    assert state(api_user, task) == "ready"


def test_without_a_filter_nothing_happens(api_user: ApiUser) -> None:
    task = api_user.created()["id"]

    bare = run("cancel", "--yes")
    everything = run("cancel", "--everything", "--yes")

    assert bare.exit_code == Code.USAGE
    assert "--everything" in bare.stderr
    assert everything.exit_code == 0, everything.stderr
    assert state(api_user, task) == "cancelled"


def test_an_empty_selection_is_reported_and_starts_nothing(api_user: ApiUser) -> None:
    api_user.created()

    shown = run("retry", "--type", "echo", "--yes")

    assert shown.exit_code == 0
    assert shown.stdout == ""
    assert "Nothing to retry: 1 task matches, retry applies to 0." in shown.stderr
    assert read("list") == []


def test_a_bulk_operation_is_started_listed_and_stopped(api_user: ApiUser) -> None:
    api_user.created()
    begun = read("cancel", "--created-after", "1h", "--yes", "--no-wait")["operation"]

    listed = run("list")
    stopped = run("cancel", begun["id"])

    assert begun["state"] == "running"
    assert begun["id"] in listed.stdout
    assert "0 of 1" in listed.stdout
    assert stopped.exit_code == 0
    assert "cancelled" in stopped.stdout
    again = run("cancel", begun["id"], "--json")
    assert json.loads(again.stderr)["error"]["code"] == "BULK_ALREADY_FINISHED"
    assert run("cancel", begun["id"], "--type", "echo").exit_code == Code.USAGE
    assert run("show", begun["id"], "--watch").exit_code == 0


def test_reprioritise_needs_a_priority() -> None:
    assert run("reprioritise", "--type", "echo").exit_code == Code.USAGE
