"""`overnight hooks`, the client's operations, and the examples of their guide."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from overnight import Client, errors
from overnight_server.domain.hook_signatures import HookScheme
from tests.support.api_user import ApiUser
from tests.support.command import run
from tests.support.deployment import Deployment
from tests.support.hook_senders import signed
from tests.support.live_api import serve

GUIDE = (Path(__file__).parents[2] / "docs/guides/events-in.md").read_text()
[YAML] = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
[PYTHON] = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def shown(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def send(admin: ApiUser, hook: dict[str, Any], event: object, **headers: str) -> dict[str, Any]:
    body = json.dumps(event).encode()
    proof = signed(HookScheme(hook["scheme"]), hook["secret"], body, at=0)
    answer = admin.http.post(hook["path"], content=body, headers=proof | headers)
    found: dict[str, Any] = answer.json()
    return found


def test_a_source_is_added_used_changed_and_removed(admin_cli: ApiUser, tmp_path: Path) -> None:
    described = tmp_path / "alerts.yaml"
    described.write_text(YAML)
    told = run("hooks", "add", "prs", "--preset", "github", "--type", "review")
    assert told.exit_code == 0, told.output
    assert "cannot be shown again" in told.stderr
    alerts = shown("hooks", "add", "alerts", str(described), "--filter", '/body/n=[1, "b"]')
    assert alerts["address"].endswith(alerts["path"])
    assert alerts["filter"] == [{"pointer": "/body/n", "one_of": [1, "b"]}]

    event = {"n": 1, "alert": "disk", "host": "a", "labels": {"x": 1}}
    made = send(admin_cli, alerts, event)
    ignored = send(admin_cli, alerts, {"n": 2}, **{"webhook-id": "msg_2"})
    failed = send(admin_cli, alerts, {"n": 1}, **{"webhook-id": "msg_3"})

    task = shown("get", made["task_ids"][0])
    assert task["title"] == "Look into disk on a"
    assert task["payload"] == {"labels": {"x": 1}, "note": None}
    assert (ignored["outcome"], failed["code"]) == ("ignored", "EVENT_UNFIT")
    listed = run("hooks", "list").stdout
    assert all(name in listed for name in ("prs", "alerts", "never"))
    received = shown("hooks", "deliveries", "alerts")
    assert [each["outcome"] for each in received] == ["failed", "ignored", "accepted"]
    assert "has no /body/alert" in run("hooks", "deliveries", "alerts").stdout

    run("hooks", "edit", "alerts", "--filter", "/body/n=1", "--name", "watch")
    described.write_text("task: {title: 'n {{ /body/n }}'}")
    assert shown("hooks", "edit", "watch", str(described))["task"] == {"title": "n {{ /body/n }}"}
    [replayed] = shown("hooks", "replay", str(received[0]["id"]))["task_ids"]
    assert shown("get", replayed)["title"] == "n 1"

    rotated = shown("hooks", "rotate", "watch", "--overlap", "1h")
    assert rotated["secret"] != alerts["secret"]
    assert "answer 401" in run("hooks", "pause", alerts["id"]).stdout
    assert send(admin_cli, rotated, event)["code"] == "HOOK_REFUSED"
    assert run("hooks", "resume", "watch").exit_code == 0
    assert send(admin_cli, rotated, event, **{"webhook-id": "msg_4"})["outcome"] == "accepted"
    assert run("hooks", "remove", "watch").stdout == "watch removed\n"
    assert [hook["name"] for hook in shown("hooks", "list")] == ["prs"]


def test_wrong_arguments_name_what_is_legal(admin_cli: ApiUser, tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("- a list")
    for arguments, message in (
        (("add", "a"), "--preset github or generic"),
        (("add", "a", "--preset", "github", "--filter", "/body"), "POINTER=VALUE"),
        (("add", "a", str(empty)), "is not one object"),
        (("add", "a", "--preset", "gitlab"), "preset"),
        (("edit", "a"), "Name a FILE"),
        (("get", "nothing"), "source of webhooks"),
        (("replay", "7"), "no such delivery"),
    ):
        result = run("hooks", *arguments)
        assert result.exit_code != 0
        assert message in result.output
    assert shown("hooks", "list") == []


def test_the_client_has_every_operation(admin_cli: ApiUser) -> None:
    with admin_cli.client() as client:
        hook = client.hooks.create("prs", preset="generic", per_minute=7)
        assert client.hooks.get(hook.id).per_minute == 7
        assert client.hooks.edit(hook.id, filter=[{"pointer": "/body", "exists": True}]).filter
        assert client.hooks.pause(hook.id).paused_at
        assert not client.hooks.resume(hook.id).paused_at
        assert client.hooks.rotate(hook.id, overlap_seconds=0).secret != hook.secret
        assert list(client.hooks.deliveries(hook.id, outcome="failed")) == []
        with pytest.raises(errors.DeliveryNotFound):
            client.hooks.delivery(1)
        assert client.hooks.remove(hook.id).removed
        with pytest.raises(errors.HookNotFound):
            client.hooks.get(hook.id)


def test_the_program_of_the_guide_makes_a_task(deployment: Deployment, database_url: str) -> None:
    program: dict[str, Any] = {}
    exec(PYTHON, program)
    with serve(deployment, database_url) as api, Client(api.url, api.key) as client:
        task = {"title": "number {{ /body/n }}"}
        hook = client.hooks.create("mine", scheme="github", task=task)
        answer = program["send"](api.url + hook.path, hook.secret, {"n": 7})
        assert client.tasks.get(answer["task_ids"][0]).title == "number 7"
