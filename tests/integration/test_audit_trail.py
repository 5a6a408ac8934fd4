"""Every changing act of a person is in the audit log with actor, act and target."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from overnight_server.control.adjust_hours import adjust_hours
from overnight_server.control.budgets import set_agent_budget
from overnight_server.control.edit import ANY, TaskEdit, edit
from overnight_server.control.inbox import drop_row, retry_row
from overnight_server.domain.ids import TaskId
from overnight_server.domain.results import Returned
from overnight_server.maintenance.bulk import run_bulks
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import AGENT, Deployment
from tests.support.graphs import assert_invariants
from tests.support.pull_agent import AGENTS, register_agent

GRAPH = {"title": "second", "tasks": [{"name": "b", "title": "b", "payload": {"pin": "0815"}}]}


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user
    assert_invariants(deployment)


def trail(deployment: Deployment, beginning: str) -> list[Mapping[str, Any]]:
    """Return the acts whose names begin so, in their order."""
    sql = "SELECT * FROM audit_log WHERE starts_with(act, :beginning) ORDER BY id"
    return deployment.rows(sql, beginning=beginning)


def key_of(api_user: ApiUser) -> str:
    return api_user.key.split("_")[2]


def test_added_and_dropped_triggers_are_audited_without_payloads(api_user: ApiUser) -> None:
    dag = api_user.created()["dag_id"]
    made = api_user.request("POST", f"/api/v1/dags/{dag}/triggers", json={"graph": GRAPH})
    assert made.status_code == 201, made.text

    api_user.request("DELETE", f"/api/v1/triggers/{made.json()['id']}")

    acts = trail(api_user.deployment, "trigger.")
    assert [entry["act"] for entry in acts] == ["trigger.added", "trigger.dropped"]
    who = (f"user:{api_user.user}", key_of(api_user), api_user.user)
    assert {(entry["actor"], entry["key_id"], entry["user_id"]) for entry in acts} == {who}
    assert "0815" not in str(acts)
    assert set(acts[1]["detail"]) == {"dropped_at"}


def test_pull_agents_are_audited_when_they_join_drain_and_leave(api_user: ApiUser) -> None:
    admin = api_user.new_user(is_admin=True)
    agent = admin.request("POST", AGENTS, json={"name": "deployment", "serves": "everyone"}).json()
    admin.request("POST", f"{AGENTS}/{agent['id']}/drain")
    admin.request("POST", AGENTS, json={"name": "deployment"})
    admin.request("DELETE", f"{AGENTS}/{agent['id']}")
    admin.request("DELETE", f"{AGENTS}/{agent['id']}")

    acts = [*trail(api_user.deployment, "agent."), *trail(api_user.deployment, "worker.")]

    assert [(entry["act"], entry["detail"].get("serves")) for entry in acts] == [
        ("agent.registered", "everyone"),
        ("agent.registered", str(admin.user)),
        ("agent.removed", None),
        ("worker.drained", None),
    ]
    who = (f"user:{admin.user}", key_of(admin), admin.user, agent["id"])
    seen = {(entry["actor"], entry["key_id"], entry["user_id"], entry["target"]) for entry in acts}
    assert seen == {who}


def test_the_retirement_of_a_silent_agent_is_not_audited(api_user: ApiUser) -> None:
    agent = register_agent(api_user)
    api_user.deployment.run("UPDATE agents SET status = 'offline' WHERE id = :id", id=agent.id)

    assert trail(api_user.deployment, "agent.removed") == []


def test_setting_a_budget_is_audited_and_spending_it_is_not(deployment: Deployment) -> None:
    deployment.agent()
    deployment.run("UPDATE agents SET budget_remaining_usd = 5 WHERE id = :id", id=AGENT)
    user = deployment.user()
    deployment.settle(deployment.running(user), Returned(cost_usd=1.0))
    spent = deployment.one(
        "SELECT budget_remaining_usd AS usd FROM agents WHERE id = :id", id=AGENT
    )

    set_agent_budget(deployment.dispatcher, AGENT, 9.0, actor="human:me")

    _, act = trail(deployment, "budget.set")
    assert (spent["usd"], act["target"], act["actor"]) == (4, AGENT, "human:me")
    assert act["detail"] == {"budget_remaining_usd": [4.0, 9.0]}


def test_acts_of_operators_on_the_inbox_are_audited(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.run(
        "INSERT INTO inbox (user_id, key_id, task, outcome, settled_at, error)"
        " VALUES (:id, 'k', '{\"pin\": \"0815\"}', 'refused', clock(), 'no')",
        id=user,
    )
    [row] = deployment.rows("SELECT id FROM inbox")

    retry_row(deployment.dispatcher, row["id"], actor="human:you")
    drop_row(deployment.dispatcher, row["id"], actor="human:me")

    acts = trail(deployment, "inbox.")
    assert [(entry["act"], entry["user_id"], entry["actor"]) for entry in acts] == [
        ("inbox.retried", user, "human:you"),
        ("inbox.dropped", user, "human:me"),
    ]
    assert "0815" not in str(acts)


def test_a_correction_of_used_hours_is_on_record_with_its_actor(deployment: Deployment) -> None:
    user = deployment.user()

    adjust_hours(deployment.dispatcher, user, 2, note="a day of work", actor="human:me")

    [act] = trail(deployment, "usage.adjusted")
    assert (act["actor"], act["user_id"], act["detail"]["seconds"]) == ("human:me", user, 7200)


def test_an_edit_is_audited_with_its_changes_but_without_payloads(api_user: ApiUser) -> None:
    task = api_user.created(priority_score=50)
    path = f"{TASKS}/{task['id']}"
    edition = api_user.request("GET", path).headers["ETag"]

    titled = api_user.request(
        "PATCH", path, json={"title": "better"}, headers={"If-Match": edition}
    )
    assert titled.status_code == 200, titled.text
    changes = TaskEdit(payload={"pin": "0815"})
    task_id = TaskId(api_user.row_id(task["id"]))
    edit(api_user.deployment.app, api_user.user, task_id, changes, editions=[ANY], actor="human:me")
    api_user.request(
        "POST",
        f"{TASKS}/bulk",
        json={"action": "reprioritise", "priority_score": 7, "filter": {"title": "better"}},
    )
    run_bulks(api_user.deployment.dispatcher)

    me, key = f"user:{api_user.user}", key_of(api_user)
    acts = trail(api_user.deployment, "task.edited")
    assert [(entry["actor"], entry["key_id"], entry["detail"]) for entry in acts] == [
        (me, key, {"title": [task["title"], "better"]}),
        ("human:me", None, {"payload": "changed"}),
        (me, key, {"priority": [50, 7]}),
    ]
    assert {entry["user_id"] for entry in acts} == {api_user.user}


def test_a_request_to_stop_a_run_is_audited_once(api_user: ApiUser) -> None:
    task = api_user.created()
    work = register_agent(api_user).begin()
    assert work["task_id"] == task["id"]

    for _ in range(2):
        api_user.request("DELETE", f"{TASKS}/{task['id']}")

    [act] = trail(api_user.deployment, "task.asked_to_stop")
    assert (act["actor"], act["target"]) == (
        f"user:{api_user.user}",
        str(api_user.row_id(task["id"])),
    )
