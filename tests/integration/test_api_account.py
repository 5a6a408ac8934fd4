"""The caller's locks, pauses, budget approvals and triggers over HTTP."""

from collections.abc import Iterator

import pytest

from overnight_server.domain.claims import Run
from overnight_server.domain.ids import show_dag, show_task
from overnight_server.domain.results import Returned, StoppedByBudget
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit_graph
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.costs import beat, start_all
from tests.support.deployment import LOOSE, Deployment

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
    deployment.running(api_user.new_user().user, locks=("repo:other",))

    [lock] = api_user.request("GET", "/api/v1/locks").json()
    deployment.settle(run, Returned("done"))
    [wait] = api_user.request("GET", "/api/v1/locks/waits").json()

    assert (lock["key"], lock["task_id"]) == ("repo:site", show_task(run.claim.task_id))
    assert lock["waiting_tasks"] == [show_task(waiting)]
    assert wait["waiting_task_id"] == show_task(waiting)


def test_a_user_pauses_and_resumes_their_own_work(api_user: ApiUser) -> None:
    held = api_user.request("POST", "/api/v1/users/me/pause", json={"note": "moving deployment"})
    again = api_user.request("POST", "/api/v1/users/me/pause")

    assert held.json() == {"paused": True, "changed": True}
    assert again.json() == {"paused": True, "changed": False}
    [pause] = api_user.request("GET", "/api/v1/pauses").json()
    assert (pause["scope"], pause["note"]) == ("user", "moving deployment")
    assert api_user.request("GET", "/api/v1/users/me").json()["paused"] is True
    assert api_user.new_user().request("GET", "/api/v1/pauses").json() == []

    freed = api_user.request("POST", "/api/v1/users/me/resume")
    assert freed.json() == {"paused": False, "changed": True}
    assert api_user.request("GET", "/api/v1/pauses").json() == []


def test_a_user_cannot_end_a_pause_of_an_operator(api_user: ApiUser) -> None:
    admin = api_user.new_user(is_admin=True)
    admin.request("POST", "/api/v1/admin/pause", json={"user": str(api_user.user), "note": "bills"})

    tried = api_user.request("POST", "/api/v1/users/me/resume")

    assert tried.json() == {"paused": True, "changed": False}
    assert [
        active_pause["note"] for active_pause in api_user.request("GET", "/api/v1/pauses").json()
    ] == ["bills"]
    freed = admin.request("POST", "/api/v1/admin/resume", json={"user": str(api_user.user)})
    assert freed.json() == {"paused": False, "changed": True}


def test_an_operators_pause_outlives_the_users_own(api_user: ApiUser) -> None:
    admin = api_user.new_user(is_admin=True)
    api_user.request("POST", "/api/v1/users/me/pause", json={"note": "supper"})
    admin.request("POST", "/api/v1/admin/pause", json={"user": str(api_user.user), "note": "bills"})

    tried = api_user.request("POST", "/api/v1/users/me/resume")

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

    [asks] = api_user.request("GET", "/api/v1/approvals").json()
    answer = api_user.request("POST", f"/api/v1/approvals/{task_id}/approve", json={"usd": 2})

    assert (asks["task_id"], asks["budget"], asks["spent_usd"]) == (task_id, "task", 1.25)
    assert answer.json() == {"budget": "task", "resumed": 1}
    assert api_user.request("GET", f"{TASKS}/{task_id}").json()["state"] == "ready"
    again = api_user.request("POST", f"/api/v1/approvals/{task_id}/approve", json={"usd": 2})
    assert (again.status_code, again.json()["code"]) == (409, "NOT_AWAITING_APPROVAL")


def test_a_user_cancels_a_task_that_waits_for_approval(api_user: ApiUser) -> None:
    task_id = asking(api_user)

    answer = api_user.request("POST", f"/api/v1/approvals/{task_id}/stop")

    assert answer.json() == {"cancelled": True, "state": "cancelled"}
    task = api_user.request("GET", f"{TASKS}/{task_id}").json()
    assert (task["state"], task["failure_reason"]) == ("cancelled", "budget_exceeded")


def test_a_trigger_is_created_listed_read_and_deleted(api_user: ApiUser) -> None:
    dag_id = api_user.created()["dag_id"]

    made = api_user.request(
        "POST", f"/api/v1/dags/{dag_id}/triggers", json={"when": "finished", "graph": GRAPH}
    )

    assert made.status_code == 201, made.text
    shown = made.json()
    assert (shown["dag_id"], shown["when"], shown["title"]) == (dag_id, "finished", "after")
    assert shown["tasks"] == 1
    assert api_user.request("GET", made.headers["location"]).json() == shown
    assert api_user.request("GET", "/api/v1/triggers", params={"dag_id": dag_id}).json() == [shown]
    assert api_user.request("DELETE", made.headers["location"]).json()["dropped"] is True
    again = api_user.request("DELETE", made.headers["location"])
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

    answer = api_user.request("POST", f"/api/v1/dags/{dag_id}/triggers", json={"graph": circle})

    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_GRAPH")


def stopped_by(api_user: ApiUser, run: Run, usd: float) -> str:
    """Let a run cost more than its budget; return the id of its waiting task."""
    beat(api_user.deployment, run, usd)
    api_user.deployment.settle(run, StoppedByBudget(cost_usd=usd))
    return show_task(run.claim.task_id)


@pytest.mark.parametrize("budget", ["night", "dag"])
def test_an_owner_cannot_raise_a_budget_that_an_operator_set(
    api_user: ApiUser, budget: str
) -> None:
    deployment = api_user.deployment
    admin = api_user.new_user(is_admin=True)
    deployment.agent()
    made = submit_graph(deployment.app, api_user.user, [NewTask("t", "echo")], LOOSE, title="g")
    if budget == "night":
        limits = {"night_budget_usd": 0.2}
        admin.request("PATCH", f"/api/v1/admin/users/{api_user.user}", json=limits)
    else:
        dag_id = show_dag(made[0].dag_id)
        admin.request("PUT", f"/api/v1/admin/dags/{dag_id}/budget", json={"usd": 0.2})
    [run] = start_all(deployment)
    task_id = stopped_by(api_user, run, 0.25)

    [asks] = api_user.request("GET", "/api/v1/approvals").json()
    answer = api_user.request("POST", f"/api/v1/approvals/{task_id}/approve", json={"usd": 999})

    assert (asks["budget"], asks["raised_by"]) == (budget, "operator")
    assert (answer.status_code, answer.json()["code"]) == (403, "BUDGET_SET_BY_OPERATOR")
    assert "only an operator can raise it" in answer.json()["detail"]
    assert deployment.state(run.claim.task_id) == "pending"
    lifted = admin.request("POST", f"/api/v1/admin/approvals/{task_id}/approve", json={"usd": 1})
    assert lifted.json() == {"budget": budget, "resumed": 1}


def test_an_owner_raises_the_budget_that_they_gave_their_graph(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.agent()
    submit_graph(deployment.app, api_user.user, [NewTask("t", "echo")], LOOSE, budget_usd=0.2)
    [run] = start_all(deployment)
    task_id = stopped_by(api_user, run, 0.25)

    [asks] = api_user.request("GET", "/api/v1/approvals").json()
    answer = api_user.request("POST", f"/api/v1/approvals/{task_id}/approve", json={"usd": 1})

    assert (asks["budget"], asks["raised_by"]) == ("dag", "owner")
    assert answer.json() == {"budget": "dag", "resumed": 1}


def test_a_fork_keeps_the_operators_hold_on_the_budget(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    admin = api_user.new_user(is_admin=True)
    deployment.agent()
    made = submit_graph(deployment.app, api_user.user, [NewTask("t", "echo")], LOOSE, title="g")
    dag_id = show_dag(made[0].dag_id)
    admin.request("PUT", f"/api/v1/admin/dags/{dag_id}/budget", json={"usd": 0.2})
    [run] = start_all(deployment)
    deployment.settle(run, Returned("done"))

    forked = api_user.request("POST", f"{TASKS}/{show_task(run.claim.task_id)}/fork", json={})

    assert forked.status_code == 201
    rows = deployment.rows("SELECT budget_by_operator FROM dags")
    assert [row["budget_by_operator"] for row in rows] == [True, True]
