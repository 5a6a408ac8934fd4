"""Agent profiles, and tasks of the runner command: over HTTP, the client and the command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overnight import errors
from overnight_server.domain.ids import parse_task
from overnight_server.domain.results import Raised
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.command import run
from tests.support.deployment import Deployment

PROFILE: dict[str, Any] = {
    "argv": ["claude", "--model", "{model}"],
    "env": {"ANTHROPIC_API_KEY": "secret:ANTHROPIC_API_KEY"},
    "network": {"allow": ["api.example.com"]},
    "limits": {"memory_mb": 4096},
    "models": ["large", "small"],
}


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


@pytest.fixture
def admin(api_user: ApiUser) -> ApiUser:
    admin = api_user.new_user(is_admin=True)
    admin.client().agent_profiles.set("claude", PROFILE)
    return admin


@pytest.mark.usefixtures("admin")
def test_a_task_copies_the_profile_when_it_is_created(api_user: ApiUser, admin: ApiUser) -> None:
    task = api_user.created(title="Fix the login bug", agent="claude")
    admin.client().agent_profiles.set("claude", {**PROFILE, "argv": ["other"]})

    shown = api_user.client().tasks.get(task["id"])

    assert (shown.runner, shown.agent, shown.type) == ("command", "claude", "command")
    assert shown.execution is not None
    assert shown.execution["argv"] == ["claude", "--model", "{model}"]
    assert shown.execution["env"] == {"ANTHROPIC_API_KEY": "secret:ANTHROPIC_API_KEY"}
    assert shown.execution["network"] == ["api.example.com"]
    assert shown.execution["limits"]["memory_mb"] == 4096
    row = api_user.deployment.row(parse_task(task["id"]))
    assert row["required_capabilities"] == ["runner:command"]


def test_an_edit_takes_the_profile_as_it_is_now(api_user: ApiUser, admin: ApiUser) -> None:
    task = api_user.created(agent="claude", limits={"memory_mb": 512})
    admin.client().agent_profiles.set("claude", {**PROFILE, "argv": ["other"]})

    edited = api_user.client().tasks.edit(task["id"], agent="claude")

    assert edited.execution is not None
    assert edited.execution["argv"] == ["other"]
    assert edited.execution["limits"]["memory_mb"] == 512


def test_a_task_of_a_handler_gets_no_profile_by_an_edit(api_user: ApiUser, admin: ApiUser) -> None:
    task = api_user.created()

    with pytest.raises(errors.InvalidRequest, match="not run by an agent profile"):
        api_user.client().tasks.edit(task["id"], agent="claude")


def test_a_command_without_a_profile_is_in_the_spec(api_user: ApiUser) -> None:
    task = api_user.created(runner="command", spec={"argv": ["ls", "-l"], "env": {"A": "1"}})

    assert task["execution"]["argv"] == ["ls", "-l"]
    assert task["execution"]["own_env"] == {"A": "1"}
    assert task["agent"] is None


def test_a_dead_command_is_retried_with_another_spec(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.agent(types=None, capabilities=["runner:command"])
    task = api_user.created(runner="command", spec={"argv": ["false"]}, max_attempts=1)
    [claimed] = deployment.claim().claims
    started = deployment.start(claimed)
    assert started is not None
    assert started.execution is not None
    assert started.execution["argv"] == ["false"]
    deployment.settle(started, Raised("error", "it broke"))

    changes = {"spec": {"argv": ["true"]}}
    api_user.client().dead_letters.modify_and_retry(task["id"], changes)

    shown = api_user.client().tasks.get(task["id"])
    assert shown.execution is not None
    assert shown.execution["argv"] == ["true"]


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"agent": "nobody"}, "agent"),
        ({"agent": "Not A Name"}, "agent"),
        ({"agent": "claude", "runner": "python"}, "agent"),
        ({"agent": "claude", "type": "echo"}, "type"),
        ({"agent": "claude", "network": {"allow": ["evil.org"]}}, "network"),
        ({"agent": "claude", "spec": {"model": "huge"}}, "spec.model"),
        ({"runner": "command"}, "spec.argv"),
        ({"runner": "command", "spec": {"argv": "ls"}}, "spec.argv"),
        ({"runner": "command", "spec": {"argv": ["ls"], "env": {"OVERNIGHT_X": "1"}}}, "spec.env"),
        ({"runner": "command", "spec": {"argv": ["ls"]}, "limits": {"memory_mb": 1}}, "limits"),
        ({"runner": "shell"}, "runner"),
        ({"limits": {"memory_mb": 512}}, "limits"),
        ({"network": "off"}, "network"),
        ({"required_capabilities": ["runner:command"]}, "required_capabilities"),
    ],
)
def test_a_wrong_field_is_named(api_user: ApiUser, body: dict[str, Any], field: str) -> None:
    answer = api_user.create(**body)

    assert answer.status_code in {400, 422}, answer.text
    assert all(each["field"].startswith(field) for each in answer.json()["errors"])


def test_an_unknown_profile_is_answered_with_the_nearest_names(api_user: ApiUser) -> None:
    none_yet = api_user.create(agent="claude")
    admin = api_user.new_user(is_admin=True)
    for name in ("claude", "codex", "gemini"):
        admin.client().agent_profiles.set(name, {"argv": [name]})

    near, far = api_user.create(agent="cluade"), api_user.create(agent="x")

    assert "an admin adds one with `overnight agent-profile add`" in none_yet.json()["detail"]
    assert near.json()["errors"][0]["legal"] == "claude"
    assert far.json()["errors"][0]["legal"] == "claude, codex, gemini"


def test_the_plan_permits_a_network(api_user: ApiUser) -> None:
    free, pro = api_user.new_user(plan_tier="free"), api_user.new_user(plan_tier="pro")
    body = {
        "runner": "command",
        "spec": {"argv": ["ls"]},
        "network": {"allow": ["example.com"]},
    }

    assert free.create(**body).json()["detail"].startswith("network: your plan gives commands no")
    assert pro.created(**body)["execution"]["network"] == ["example.com"]


@pytest.mark.usefixtures("admin")
def test_graphs_and_spawned_tasks_take_profiles(api_user: ApiUser) -> None:
    tasks = [{"name": "a", "title": "a", "agent": "claude"}, {"name": "b", "title": "b"}]
    body = {"title": "g", "tasks": tasks, "edges": [{"parent": "a", "child": "b"}]}

    created = api_user.request("POST", "/api/v1/dags", json=body)

    assert created.status_code == 201, created.text
    rows = api_user.deployment.rows("SELECT type, execution FROM tasks ORDER BY name")
    assert [row["type"] for row in rows] == ["command", "echo"]
    assert [row["execution"] is None for row in rows] == [False, True]


def test_without_a_sandbox_a_command_waits_and_explain_says_why(api_user: ApiUser) -> None:
    api_user.deployment.agent()
    task = api_user.created(runner="command", spec={"argv": ["ls"]})

    explained = api_user.client().tasks.explain(task["id"])

    assert [reason.code for reason in explained.reasons] == ["no_capable_agent"]
    assert "can make no sandbox for a command" in explained.reasons[0].message


def test_only_admins_change_profiles_and_the_audit_log_says_who(
    api_user: ApiUser, admin: ApiUser
) -> None:
    profiles = "/api/v1/admin/agent-profiles/claude"

    assert api_user.request("PUT", profiles, json=PROFILE).status_code == 404
    assert api_user.request("DELETE", profiles).status_code == 404
    assert [each.name for each in api_user.client().agent_profiles.list()] == ["claude"]
    assert api_user.client().agent_profiles.get("claude").profile["models"] == ["large", "small"]
    admin.client().agent_profiles.remove("claude")
    with pytest.raises(errors.AgentProfileNotFound):
        admin.client().agent_profiles.remove("claude")
    with pytest.raises(errors.AgentProfileNotFound):
        api_user.client().agent_profiles.get("claude")
    acts = api_user.deployment.rows(
        "SELECT act, actor, target FROM audit_log WHERE act LIKE 'agent_profile%' ORDER BY id"
    )
    assert [(each["act"], each["target"]) for each in acts] == [
        ("agent_profile.set", "claude"),
        ("agent_profile.removed", "claude"),
    ]
    assert {each["actor"] for each in acts} == {f"user:{admin.user}"}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"argv": []},
        {"argv": [""]},
        {"argv": "claude"},
        {"argv": ["x"], "env": {"1A": "x"}},
        {"argv": ["x"], "env": {"OVERNIGHT_URL": "x"}},
        {"argv": ["x"], "network": "on"},
        {"argv": ["x"], "network": {"allow": []}},
        {"argv": ["x"], "network": {"allow": ["http://a.b"]}},
        {"argv": ["x"], "limits": {"memory_mb": 1}},
        {"argv": ["x"], "mounts": [{"source": "relative", "target": "/a"}]},
        {"argv": ["x"], "mounts": [{"source": "/a", "target": "/tmp/a"}]},
        {"argv": ["x"], "mounts": [{"source": "/a", "target": "/opt/../tmp"}]},
        {"argv": ["x"], "shell": True},
    ],
)
def test_a_wrong_profile_is_refused(admin: ApiUser, wrong: dict[str, Any]) -> None:
    answer = admin.request("PUT", "/api/v1/admin/agent-profiles/new", json=wrong)

    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"]


def test_the_command_line_adds_shows_and_removes_profiles(
    admin: ApiUser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    admin.take_commands(monkeypatch)
    file = tmp_path / "codex.yaml"
    file.write_text("argv: [codex, exec, '-']\nnetwork: 'off'\n")

    added = run("agent-profile", "add", "codex", str(file))
    listed = run("agent-profile", "list")
    shown = run("agent-profile", "show", "codex")
    removed = run("agent-profile", "remove", "codex")

    assert added.stdout == "Agent profile codex is set.\n", added.stderr
    assert "claude" in listed.stdout
    assert "codex exec -" in listed.stdout
    assert json.loads(shown.stdout)["argv"] == ["codex", "exec", "-"]
    assert removed.stdout == "Agent profile codex is removed.\n"
    assert run("agent-profile", "show", "codex").exit_code != 0


def test_the_command_line_submits_agents_and_commands(
    admin: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.take_commands(monkeypatch)

    with_agent = run("add", "Fix the login bug", "--agent", "claude", "--model", "small", "--json")
    with_command = run(
        "add", "List", "--runner", "command", "--memory-mb", "512", "--json", "--", "ls", "-la"
    )

    assert json.loads(with_agent.stdout)["agent"] == "claude", with_agent.stderr
    assert json.loads(with_command.stdout)["execution"]["argv"] == ["ls", "-la"]
    assert json.loads(with_command.stdout)["execution"]["limits"]["memory_mb"] == 512
    task_id = json.loads(with_agent.stdout)["id"]
    shown = run("get", task_id).stdout
    assert "claude --model" in shown
    assert run("edit", task_id, "--agent", "claude").exit_code == 0
    refused = run("add", "x", "--runner", "python", "--", "ls")
    assert "the runner python runs no command" in refused.stderr


def test_a_fork_keeps_how_a_command_runs(api_user: ApiUser) -> None:
    task = api_user.created(runner="command", spec={"argv": ["ls"]})

    forked = api_user.request("POST", f"{TASKS}/{task['id']}/fork", json={})

    assert forked.status_code == 201, forked.text
    rows = api_user.deployment.rows("SELECT execution FROM tasks")
    assert [row["execution"]["argv"] for row in rows] == [["ls"], ["ls"]]
