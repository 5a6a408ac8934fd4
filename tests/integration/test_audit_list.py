"""The audit list has ids that other commands accept, and a column for the key."""

from collections.abc import Iterator

import pytest

from overnight_server.control.keys import key_id_of
from overnight_server.insight.audit_log import list_audit_entries
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.command import run
from tests.support.deployment import Deployment


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def test_the_target_of_an_audit_entry_is_shown_by_its_public_id(api_user: ApiUser) -> None:
    task = api_user.created()
    api_user.request("DELETE", f"{TASKS}/{task['id']}")
    bulk = api_user.request(
        "POST", f"{TASKS}/bulk", json={"action": "retry", "filter": {"status": "cancelled"}}
    ).json()

    targets = {act.act: act.target for act in list_audit_entries(api_user.deployment.app)}

    assert targets["task.cancelled"] == task["id"]
    assert targets["bulk.started"] == bulk["id"]


def test_the_table_has_a_column_for_the_key(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_user.new_user(is_admin=True).take_commands(monkeypatch)
    api_user.request("POST", "/api/v1/keys", json={"name": "ci"})

    shown = run("audit", "list")

    assert shown.exit_code == 0, shown.output
    head, *lines = shown.stdout.splitlines()
    assert head.split() == ["AT", "ACTOR", "ACT", "TARGET", "USER", "KEY", "VIA", "DETAIL"]
    [line] = [entry for entry in lines if "name ci" in entry]
    assert f" {key_id_of(api_user.key)} " in line


def test_the_table_names_people_and_leaves_out_what_other_columns_say(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_user.new_user(is_admin=True, name="root").take_commands(monkeypatch)
    api_user.deployment.run("UPDATE users SET name = 'ada' WHERE id = :id", id=api_user.user)
    task = api_user.created()["id"]
    run("user", "limits", "ada", "--hours", "7")

    lines = [line.split() for line in run("audit", "list", "--user", "ada").stdout.splitlines()]

    changed = next(line for line in lines if "user.changed" in line)
    assert changed[2:6] == ["root", "user.changed", "-", "ada"]
    assert changed[-5:] == ["hours", "limit", "none", "→", "7"]
    [created] = [line for line in lines if task in line]
    assert created[2:6] == ["ada", "task.ready", task, "ada"]
    assert created[-1] == "-"
