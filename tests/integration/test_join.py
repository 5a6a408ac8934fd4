"""Tasks that join a graph which is there already: `workflow_id` at a create."""

from collections.abc import Iterator
from typing import Any

import pytest

from overnight import errors
from overnight_server.domain.results import Raised, Returned
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.invariants import violations

DAGS = "/api/v1/dags"
GRAPH = {
    "title": "a workflow",
    "tasks": [{"name": "a", "title": "a"}, {"name": "b", "title": "b", "depends_on": ["a"]}],
}


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    deployment.agent()
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def graph(api_user: ApiUser, dag_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = api_user.request("GET", f"{DAGS}/{dag_id}").json()
    return shown


def run_all(deployment: Deployment) -> None:
    """Run whatever is ready, until nothing is."""
    while claims := deployment.claim().claims:
        for claimed in claims:
            run = deployment.start(claimed)
            assert run is not None
            deployment.settle(run, Returned("done"))


def test_a_task_joins_a_running_graph(api_user: ApiUser) -> None:
    dag_id = api_user.request("POST", DAGS, json=GRAPH).json()["id"]

    answer = api_user.request(
        "POST",
        "/api/v1/tasks",
        json={
            "workflow_id": dag_id,
            "agent_name": "FitmentAgent",
            "task_type": "generate_fitment",
            "payload": {"sku": 1},
            "priority": 2,
            "max_attempts": 3,
        },
    )

    assert answer.status_code == 201, answer.text
    task = answer.json()
    assert task["workflow_id"] == task["dag_id"] == dag_id
    assert graph(api_user, dag_id)["counts"]["total"] == 3
    assert not violations(api_user.deployment.owner)


def test_joining_an_ended_graph_makes_it_run_again(api_user: ApiUser) -> None:
    dag_id = api_user.request("POST", DAGS, json=GRAPH).json()["id"]
    run_all(api_user.deployment)
    assert graph(api_user, dag_id)["status"] == "completed"

    api_user.created(dag_id=dag_id)

    again = graph(api_user, dag_id)
    assert (again["status"], again["counts"]["open"], again["finished_at"]) == ("running", 1, None)
    run_all(api_user.deployment)
    assert graph(api_user, dag_id)["counts"]["completed"] == 3
    assert not violations(api_user.deployment.owner)


@pytest.mark.parametrize("ends_as", [None, "completed", "dead_lettered", "cancelled"])
def test_a_task_can_join_the_graph_of_a_lone_task(api_user: ApiUser, ends_as: str | None) -> None:
    first = api_user.created(max_attempts=1)
    if ends_as == "cancelled":
        api_user.request("DELETE", f"/api/v1/tasks/{first['id']}")
    elif ends_as is not None:
        run = api_user.deployment.start(api_user.deployment.claim().claims[0])
        assert run is not None
        result = Returned() if ends_as == "completed" else Raised("auth_failure", "no")
        api_user.deployment.settle(run, result)

    second = api_user.created(workflow_id=first["dag_id"])

    shown = graph(api_user, first["dag_id"])
    assert [task["id"] for task in shown["tasks"]] == [first["id"], second["id"]]
    assert shown["counts"]["open"] == (2 if ends_as is None else 1)
    assert not violations(api_user.deployment.owner)
    run_all(api_user.deployment)
    expected = {"dead_lettered": "failed", "cancelled": "cancelled"}.get(ends_as or "", "completed")
    assert graph(api_user, first["dag_id"])["status"] == expected
    assert not violations(api_user.deployment.owner)


def test_a_joined_task_waits_for_the_tasks_whose_output_it_reads(api_user: ApiUser) -> None:
    first = api_user.created()

    second = api_user.created(
        workflow_id=first["dag_id"], context_refs=[f"task:{first['id']}:output"]
    )

    assert second["state"] == "pending"
    run_all(api_user.deployment)
    assert api_user.request("GET", f"/api/v1/tasks/{second['id']}").json()["status"] == "completed"


def test_the_same_key_again_is_the_same_task(api_user: ApiUser) -> None:
    dag_id = api_user.created()["dag_id"]

    first = api_user.create(workflow_id=dag_id, idempotency_key="once")
    again = api_user.create(workflow_id=dag_id, idempotency_key="once")

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    assert graph(api_user, dag_id)["counts"]["total"] == 2


def test_joining_an_unknown_or_another_users_graph_is_refused(api_user: ApiUser) -> None:
    theirs = api_user.new_user().created()["dag_id"]

    for dag_id in (theirs, "dag_00000000000000000000000000", "nonsense"):
        refused = api_user.create(workflow_id=dag_id)
        assert (refused.status_code, refused.json()["code"]) == (404, "DAG_NOT_FOUND")


def test_the_caps_apply_to_joined_tasks(api_user: ApiUser) -> None:
    dag_id = api_user.created()["dag_id"]
    api_user.deployment.run("UPDATE users SET max_tasks_per_dag = 2")
    api_user.created(workflow_id=dag_id)

    too_large = api_user.create(workflow_id=dag_id)
    api_user.deployment.run("UPDATE users SET max_tasks_per_dag = NULL, max_pending = 2")
    too_many = api_user.create(workflow_id=dag_id)

    assert too_large.status_code in (400, 409)
    assert too_many.json()["code"] == "TOO_MANY_PENDING"


def test_a_task_of_a_new_graph_cannot_name_another_graph(api_user: ApiUser) -> None:
    dag_id = api_user.created()["dag_id"]
    wrong = {"title": "x", "tasks": [{"name": "a", "title": "a", "workflow_id": dag_id}]}

    refused = api_user.request("POST", DAGS, json=wrong)

    assert refused.status_code == 400
    assert refused.json()["errors"][0]["field"] == "workflow_id"


def test_the_client_can_join_a_graph(api_user: ApiUser) -> None:
    with api_user.client() as client:
        first = client.tasks.create("a")
        second = client.tasks.create("b", workflow_id=first.dag_id)

        assert second.workflow_id == first.dag_id
        with pytest.raises(errors.OvernightError):
            client.tasks.create("c", workflow_id="dag_00000000000000000000000000")
