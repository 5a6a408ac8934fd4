"""What a person types in the morning: get, list, events, usage, edit and retry, on the real API."""

import json
import shlex
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from overnight_server.cli.terminal import output
from overnight_server.cli.terminal.failures import Code
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Raised, Returned, StoppedByBudget
from tests.support.api_user import ApiUser, serve_api
from tests.support.command import run
from tests.support.deployment import Deployment

TRACEBACK = """Traceback (most recent call last):
  File "handlers.py", line 7, in fetch
    raise ValueError("no page")
ValueError: no page
"""
FAILED = Raised("error", "no page", detail=TRACEBACK)


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        api_user.deployment.agent()
        yield api_user


@pytest.fixture(autouse=True)
def place(api_user: ApiUser, empty_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place whose commands reach this API and nothing else."""
    api_user.take_commands(monkeypatch)


def failed_task(api_user: ApiUser, result: Raised = FAILED, **fields: Any) -> str:
    run_ = running(api_user, max_attempts=1, **fields)
    api_user.deployment.settle(run_, result)
    return show_task(run_.claim.task_id)


def running(api_user: ApiUser, **fields: Any) -> Run:
    return api_user.deployment.running(api_user.user, **fields)


def state(api_user: ApiUser, task: str) -> str:
    return api_user.deployment.state(api_user.row_id(task))


def read(*arguments: str) -> Any:
    shown = run(*arguments, "--json")
    assert shown.exit_code == 0, shown.stderr
    return json.loads(shown.stdout)


def test_get_shows_each_run_with_its_traceback(api_user: ApiUser) -> None:
    task = failed_task(api_user)

    shown = run("get", task)
    document = read("get", task)

    assert "run 1: " in shown.stdout, shown.stderr
    for line in TRACEBACK.splitlines():
        assert f"\n    {line}\n" in shown.stdout
    [attempt] = document["runs"]
    assert (attempt["error"], attempt["detail"]) == ("no page", TRACEBACK)


def test_get_prints_a_repeated_traceback_once(api_user: ApiUser) -> None:
    task = failed_task(api_user)
    assert run("retry", task, "--attempts", "1").exit_code == 0
    [claimed] = api_user.deployment.claim().claims
    again = api_user.deployment.start(claimed)
    assert again is not None
    api_user.deployment.settle(again, FAILED)

    shown = run("get", task).stdout

    assert shown.count("line 7, in fetch") == 1
    assert shown.index("run 1: ") < shown.index("line 7") < shown.index("run 2: ")
    assert "The traceback is the same as before." in shown


def test_events_lists_what_happened_in_order(api_user: ApiUser) -> None:
    task = failed_task(api_user)

    kinds = [event["kind"] for event in read("events", task)]
    lines = run("events", task).stdout.splitlines()
    followed = run("events", task, "--follow").stdout.splitlines()

    assert (kinds[0], kinds[-1]) == ("task.ready", "task.dead_lettered")
    assert lines[0].split() == ["AT", "EVENT", "FROM", "RUN", "REASON"]
    assert len(lines) == len(kinds) + 1
    assert [line.split()[2] for line in followed] == kinds


def test_list_selects_tasks_by_every_criterion(api_user: ApiUser) -> None:
    wanted = api_user.created(
        title="Fetch pages", type="fetch", tags=["night"], project_id="site", source="web"
    )["id"]
    api_user.created(title="other")

    listed = read(
        *("list", "--type", "fetch", "--tag", "night", "--project", "site", "--source", "web"),
        *("--title", "PAGES", "--created-after", "1h", "--status", "pending"),
    )

    assert [task["id"] for task in listed] == [wanted]
    assert read("list", "--created-before", "1h") == []


def test_list_selects_tasks_by_graph_and_by_end(api_user: ApiUser) -> None:
    task = failed_task(api_user, title="of a graph")
    other = failed_task(api_user)
    dag = read("get", task)["dag_id"]

    assert [each["id"] for each in read("list", "--dag", dag)] == [task]
    assert {each["id"] for each in read("list", "--ended-after", "1h")} == {task, other}
    assert read("list", "--ended-before", "1h") == []
    wrong = run("list", "--dag", "nonsense")
    assert (wrong.exit_code, "--dag: No recent graph" in wrong.stderr) == (Code.FAILED, True)
    preview = read("bulk", "retry", "--dag", dag, "--preview")
    assert (preview["total"], preview["applies"]) == (1, 1)


def test_edit_changes_payload_and_start(api_user: ApiUser) -> None:
    task = api_user.created(payload={"pages": 1})["id"]

    later = read("edit", task, "--payload", '{"pages": 2}', "--in", "2h")
    assert (later["payload"], later["state"]) == ({"pages": 2}, "pending")
    assert later["start_at"] is not None
    now = read("edit", task, "--now")
    assert (now["state"], now["start_at"]) == ("ready", None)
    for first, second in ((("--in", "2h"), ("--now",)), (("--payload", "{}"), ("--edit",))):
        refused = run("edit", task, *first, *second)
        assert refused.exit_code == Code.USAGE
        assert f"{first[0]} and {second[0]} cannot be used together" in refused.stderr


def test_an_owner_approves_and_stops_own_tasks(api_user: ApiUser) -> None:
    stopped, continued = (running(api_user, max_cost_usd=1.0) for _ in range(2))
    for each in (stopped, continued):
        api_user.deployment.settle(each, StoppedByBudget("too dear", cost_usd=1.25))
    first, second = (show_task(each.claim.task_id) for each in (stopped, continued))

    assert {each["task_id"] for each in read("approvals", "list")} == {first, second}
    assert run("stop", first).stdout == f"{first} cancelled\n"
    assert "continues" in run("approve", second[-8:], "--usd", "2").stdout
    assert (state(api_user, first), state(api_user, second)) == ("cancelled", "ready")
    other = api_user.deployment.running(api_user.deployment.user(), max_cost_usd=1.0)
    api_user.deployment.settle(other, StoppedByBudget("too dear", cost_usd=1.25))
    denied = run("approve", show_task(other.claim.task_id), "--usd", "2", "--all-users")
    assert "needs the API key of an admin" in denied.stderr


def test_retry_runs_a_dead_letter_of_ones_own_again(api_user: ApiUser) -> None:
    task = failed_task(api_user)

    retried = run("retry", task[-8:], "--note", "the page is there now")

    assert retried.exit_code == 0, retried.stderr
    assert retried.stdout == f"{task}\n"
    assert "1 task will run again" in retried.stderr
    assert state(api_user, task) == "ready"
    letter = api_user.client().dead_letters.get(task)
    assert (letter.resolution, letter.note) == ("retry", "the page is there now")


@pytest.mark.parametrize("ended", ["dead_lettered", "cancelled"])
def test_retry_replaces_the_payload_in_the_same_step(api_user: ApiUser, ended: str) -> None:
    if ended == "cancelled":
        task = api_user.created(payload={"page": 1})["id"]
        run("cancel", task)
    else:
        task = failed_task(api_user, payload={"page": 1})
    assert state(api_user, task) == ended

    retried = run("retry", task, "--payload", '{"page": 2}')

    assert retried.exit_code == 0, retried.stderr
    assert read("get", task)["payload"] == {"page": 2}
    assert state(api_user, task) == "ready"


def test_a_refused_retry_changes_no_payload(api_user: ApiUser) -> None:
    task = api_user.created(payload={"page": 1})["id"]

    refused = run("retry", task, "--payload", '{"page": 2}')

    assert refused.exit_code == Code.FAILED
    assert read("get", task)["payload"] == {"page": 1}


def test_retry_edits_the_payload_in_the_editor(
    api_user: ApiUser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = failed_task(api_user, payload={"page": 1})
    script = tmp_path / "editor.py"
    script.write_text(
        "import sys, pathlib\n"
        "file = pathlib.Path(sys.argv[1])\n"
        "file.write_text(file.read_text().replace('1', '2'))\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("EDITOR", shlex.join([sys.executable, str(script)]))
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is not sys.stdout)

    retried = run("retry", task, "--edit")

    assert retried.exit_code == 0, retried.stderr
    assert read("get", task)["payload"] == {"page": 2}


def test_a_payload_with_masked_secrets_is_not_edited(api_user: ApiUser) -> None:
    task = failed_task(api_user, payload={"login": {"password": "hunter2"}})

    refused = run("retry", task, "--edit")

    assert refused.exit_code == Code.USAGE
    assert "secrets that the server does not show" in refused.stderr
    assert state(api_user, task) == "dead_lettered"


@pytest.mark.parametrize("option", [("--at", "2099-01-31T02:00Z"), ("--in", "3h")])
def test_a_task_is_added_for_later(api_user: ApiUser, option: tuple[str, str]) -> None:
    added = run("add", "x", *option)

    assert added.exit_code == 0, added.stderr
    task = added.stdout.strip()
    assert "It does not start before " in added.stderr
    assert state(api_user, task) == "pending"
    if option[0] == "--at":
        assert read("get", task)["start_at"] == "2099-01-31T02:00:00Z"
    assert run("add", "x", *option, "--at", "02:00", "--in", "1h").exit_code == Code.USAGE


def test_edit_changes_only_the_given_fields(api_user: ApiUser) -> None:
    task = api_user.created(title="old", tags=["a"], timeout_seconds=60)["id"]

    edited = read("edit", task, "--priority", "1", "--timeout", "30m", "--no-tags")
    removed = read("edit", task, "--no-timeout")

    assert (edited["priority"], edited["timeout_seconds"], edited["tags"]) == (1, 1800, [])
    assert (removed["title"], removed["timeout_seconds"]) == ("old", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "No change is given."),
        (("--timeout", "1h", "--no-timeout"), "--timeout and --no-timeout cannot be used together"),
        (("--tag", "a", "--no-tags"), "--tag and --no-tags cannot be used together"),
        (("--priority", "1", "--priority-score", "3"), "cannot be used together"),
    ],
)
def test_an_edit_without_clear_changes_is_refused(
    api_user: ApiUser, arguments: tuple[str, ...], message: str
) -> None:
    task = api_user.created()["id"]

    refused = run("edit", task, *arguments)

    assert refused.exit_code == Code.USAGE
    assert message in refused.stderr


def test_usage_shows_hours_by_day_and_type_and_what_is_left(api_user: ApiUser) -> None:
    api_user.deployment.run(
        "UPDATE users SET monthly_agent_hours_limit = 10 WHERE id = :id", id=api_user.user
    )
    first = running(api_user, type="fetch")
    api_user.deployment.move_clock(timedelta(hours=2))
    api_user.deployment.settle(first, Returned())
    task = show_task(first.claim.task_id)

    shown = run("usage").stdout
    document = read("usage")
    ledger = read("usage", "--ledger")

    assert "hours used      2.00 of 10" in shown
    assert "hours left      8.00" in shown
    assert [(each["type"], each["hours"], each["runs"]) for each in document["types"]] == [
        ("fetch", 2.0, 1)
    ]
    assert [each["runs"] for each in document["days"]] == [1]
    assert ["fetch", "2.00", "1"] in [line.split() for line in shown.splitlines()]
    assert [entry["task_id"] for entry in ledger] == [task]
    assert task in run("usage", "--ledger").stdout


def test_refusals_name_the_next_command(api_user: ApiUser) -> None:
    done = running(api_user)
    api_user.deployment.settle(done, Returned())
    waiting = api_user.created()["id"]

    completed = run("retry", show_task(done.claim.task_id)).stderr
    late = run("wait", waiting, "--timeout", "1").stderr
    missing = run("batch", "missing.yaml")
    assert run("cancel", waiting).exit_code == 0
    explained = run("explain", waiting).stdout

    assert "`overnight dag fork ID` runs a completed task again" in completed
    assert "It has not ended; continue waiting with `overnight wait" in late
    assert missing.stderr.startswith("Error: FILE: cannot read missing.yaml")
    assert "(cancelled)" not in explained
    assert "run it again with `overnight retry`" in explained
