"""The caller's locks, pauses, budget approvals and triggers over HTTP."""

from collections.abc import Iterator

import pytest

from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Returned, StoppedByBudget
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import Deployment

GRAPH = {"title": "after", "tasks": [{"name": "a", "title": "report"}]}


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def test_a_user_sees_the_locks_of_their_own_tasks(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.agent()
    run = deployment.running(api_user.user, locks=("repo:site",))
    waiting = deployment.task(api_user.user, locks=("repo:site",))
    deployment.running(api_user.guest().user, locks=("repo:other",))

    [lock] = api_user.ask("GET", "/api/v1/locks").json()
    deployment.settle(run, Returned("done"))
    [wait] = api_user.ask("GET", "/api/v1/locks/waits").json()

    assert (lock["key"], lock["task_id"]) == ("repo:site", show_task(run.claim.task_id))
    assert lock["waiting_tasks"] == [show_task(waiting)]
    assert wait["waiting_task_id"] == show_task(waiting)


def test_a_user_pauses_and_resumes_their_own_work(api_user: ApiUser) -> None:
    held = api_user.ask("POST", "/api/v1/users/me/pause", json={"note": "moving deployment"})
    again = api_user.ask("POST", "/api/v1/users/me/pause")

    assert held.json() == {"paused": True, "changed": True}
    assert again.json() == {"paused": True, "changed": False}
    [pause] = api_user.ask("GET", "/api/v1/pauses").json()
    assert (pause["scope"], pause["note"]) == ("user", "moving deployment")
    assert api_user.ask("GET", "/api/v1/users/me").json()["paused"] is True
    assert api_user.guest().ask("GET", "/api/v1/pauses").json() == []

    freed = api_user.ask("POST", "/api/v1/users/me/resume")
    assert freed.json() == {"paused": False, "changed": True}
    assert api_user.ask("GET", "/api/v1/pauses").json() == []


def test_a_user_cannot_end_a_pause_of_an_operator(api_user: ApiUser) -> None:
    admin = api_user.guest(is_admin=True)
    admin.ask("POST", "/api/v1/admin/pause", json={"user": str(api_user.user), "note": "bills"})

    tried = api_user.ask("POST", "/api/v1/users/me/resume")

    assert tried.json() == {"paused": True, "changed": False}
    assert [
        active_pause["note"] for active_pause in api_user.ask("GET", "/api/v1/pauses").json()
    ] == ["bills"]
    freed = admin.ask("POST", "/api/v1/admin/resume", json={"user": str(api_user.user)})
    assert freed.json() == {"paused": False, "changed": True}


def test_an_operators_pause_outlives_the_users_own(api_user: ApiUser) -> None:
    admin = api_user.guest(is_admin=True)
    api_user.ask("POST", "/api/v1/users/me/pause", json={"note": "supper"})
    admin.ask("POST", "/api/v1/admin/pause", json={"user": str(api_user.user), "note": "bills"})

    tried = api_user.ask("POST", "/api/v1/users/me/resume")

    assert tried.json() == {"paused": True, "changed": False}
    sql = "SELECT act, actor FROM audit_log WHERE user_id = :u AND act IN ('paused', 'resumed')"
    acts = api_user.deployment.rows(sql, u=api_user.user)
    assert {act["act"] for act in acts} == {"paused"}
    assert f"user:{admin.user}" in {act["actor"] for act in acts}


def asking(api_user: ApiUser) -> str:
    """Return a task that has used up its ceiling."""
    api_user.deployment.agent()
    dear = api_user.deployment.running(api_user.user, max_cost_usd=1.0)
    api_user.deployment.settle(dear, StoppedByBudget("too dear", cost_usd=1.25))
    return show_task(dear.claim.task_id)


def test_a_user_approves_a_larger_budget(api_user: ApiUser) -> None:
    task_id = asking(api_user)

    [asks] = api_user.ask("GET", "/api/v1/approvals").json()
    answer = api_user.ask("POST", f"/api/v1/approvals/{task_id}/approve", json={"usd": 2})

    assert (asks["task_id"], asks["budget"], asks["spent_usd"]) == (task_id, "task", 1.25)
    assert answer.json() == {"budget": "task", "resumed": 1}
    assert api_user.ask("GET", f"{TASKS}/{task_id}").json()["state"] == "ready"
    again = api_user.ask("POST", f"/api/v1/approvals/{task_id}/approve", json={"usd": 2})
    assert (again.status_code, again.json()["code"]) == (409, "NOT_AWAITING_APPROVAL")


def test_a_user_cancels_a_task_that_waits_for_approval(api_user: ApiUser) -> None:
    task_id = asking(api_user)

    answer = api_user.ask("POST", f"/api/v1/approvals/{task_id}/stop")

    assert answer.json() == {"cancelled": True, "state": "cancelled"}
    task = api_user.ask("GET", f"{TASKS}/{task_id}").json()
    assert (task["state"], task["failure_reason"]) == ("cancelled", "budget_exceeded")


def test_a_trigger_is_created_listed_read_and_deleted(api_user: ApiUser) -> None:
    dag_id = api_user.created()["dag_id"]

    made = api_user.ask(
        "POST", f"/api/v1/dags/{dag_id}/triggers", json={"when": "finished", "graph": GRAPH}
    )

    assert made.status_code == 201, made.text
    shown = made.json()
    assert (shown["dag_id"], shown["when"], shown["title"]) == (dag_id, "finished", "after")
    assert shown["tasks"] == 1
    assert api_user.ask("GET", made.headers["location"]).json() == shown
    assert api_user.ask("GET", "/api/v1/triggers", params={"dag_id": dag_id}).json() == [shown]
    assert api_user.ask("DELETE", made.headers["location"]).json()["dropped"] is True
    again = api_user.ask("DELETE", made.headers["location"])
    assert (again.status_code, again.json()["code"]) == (404, "TRIGGER_NOT_FOUND")


def test_a_trigger_with_an_invalid_graph_is_refused(api_user: ApiUser) -> None:
    dag_id = api_user.created()["dag_id"]
    circle = {
        "title": "c",
        "tasks": [
            {"name": "a", "title": "a", "depends_on": ["b"]},
            {"name": "b", "title": "b", "depends_on": ["a"]},
        ],
    }

    answer = api_user.ask("POST", f"/api/v1/dags/{dag_id}/triggers", json={"graph": circle})

    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_GRAPH")
