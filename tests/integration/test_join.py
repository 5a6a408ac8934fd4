"""Tasks that join a graph which is there already: `workflow_id` at a create."""

from collections.abc import Iterator
from typing import Any

import pytest

from overnight import errors
from overnight_server.domain.results import Raised, Returned
from tests.support.door import Door, open_door
from tests.support.house import House
from tests.support.invariants import violations

DAGS = "/api/v1/dags"
GRAPH = {
    "title": "a workflow",
    "tasks": [{"name": "a", "title": "a"}, {"name": "b", "title": "b", "depends_on": ["a"]}],
}


@pytest.fixture
def door(house: House, database_url: str) -> Iterator[Door]:
    house.agent()
    with open_door(house, database_url) as door:
        yield door


def graph(door: Door, dag_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = door.ask("GET", f"{DAGS}/{dag_id}").json()
    return shown


def run_all(house: House) -> None:
    """Run whatever is ready, until nothing is."""
    while claims := house.claim().claims:
        for claimed in claims:
            run = house.start(claimed)
            assert run is not None
            house.settle(run, Returned("done"))


def test_a_task_joins_a_graph_that_runs(door: Door) -> None:
    dag_id = door.ask("POST", DAGS, json=GRAPH).json()["id"]

    answer = door.ask(
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
    assert graph(door, dag_id)["counts"]["total"] == 3
    assert not violations(door.house.owner)


def test_a_graph_that_has_ended_is_open_again(door: Door) -> None:
    dag_id = door.ask("POST", DAGS, json=GRAPH).json()["id"]
    run_all(door.house)
    assert graph(door, dag_id)["status"] == "completed"

    door.created(dag_id=dag_id)

    again = graph(door, dag_id)
    assert (again["status"], again["counts"]["open"], again["finished_at"]) == ("running", 1, None)
    run_all(door.house)
    assert graph(door, dag_id)["counts"]["completed"] == 3
    assert not violations(door.house.owner)


@pytest.mark.parametrize("ends_as", [None, "completed", "dead_lettered", "cancelled"])
def test_a_lone_task_gets_company(door: Door, ends_as: str | None) -> None:
    first = door.created(max_attempts=1)
    if ends_as == "cancelled":
        door.ask("DELETE", f"/api/v1/tasks/{first['id']}")
    elif ends_as is not None:
        run = door.house.start(door.house.claim().claims[0])
        assert run is not None
        result = Returned() if ends_as == "completed" else Raised("auth_failure", "no")
        door.house.settle(run, result)

    second = door.created(workflow_id=first["dag_id"])

    shown = graph(door, first["dag_id"])
    assert [task["id"] for task in shown["tasks"]] == [first["id"], second["id"]]
    assert shown["counts"]["open"] == (2 if ends_as is None else 1)
    assert not violations(door.house.owner)
    run_all(door.house)
    expected = {"dead_lettered": "failed", "cancelled": "cancelled"}.get(ends_as or "", "completed")
    assert graph(door, first["dag_id"])["status"] == expected
    assert not violations(door.house.owner)


def test_what_it_reads_of_the_graph_it_waits_for(door: Door) -> None:
    first = door.created()

    second = door.created(workflow_id=first["dag_id"], context_refs=[f"task:{first['id']}:output"])

    assert second["state"] == "pending"
    run_all(door.house)
    assert door.ask("GET", f"/api/v1/tasks/{second['id']}").json()["status"] == "completed"


def test_the_same_key_again_is_the_same_task(door: Door) -> None:
    dag_id = door.created()["dag_id"]

    first = door.create(workflow_id=dag_id, idempotency_key="once")
    again = door.create(workflow_id=dag_id, idempotency_key="once")

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    assert graph(door, dag_id)["counts"]["total"] == 2


def test_nobody_joins_what_is_not_theirs_or_not_there(door: Door) -> None:
    theirs = door.guest().created()["dag_id"]

    for named in (theirs, "dag_00000000000000000000000000", "nonsense"):
        refused = door.create(workflow_id=named)
        assert (refused.status_code, refused.json()["code"]) == (404, "DAG_NOT_FOUND")


def test_caps_hold_for_whoever_joins(door: Door) -> None:
    dag_id = door.created()["dag_id"]
    door.house.run("UPDATE users SET max_tasks_per_dag = 2")
    door.created(workflow_id=dag_id)

    too_large = door.create(workflow_id=dag_id)
    door.house.run("UPDATE users SET max_tasks_per_dag = NULL, max_pending = 2")
    too_many = door.create(workflow_id=dag_id)

    assert too_large.status_code in (400, 409)
    assert too_many.json()["code"] == "TOO_MANY_PENDING"


def test_a_task_of_a_new_graph_names_no_other(door: Door) -> None:
    dag_id = door.created()["dag_id"]
    wrong = {"title": "x", "tasks": [{"name": "a", "title": "a", "workflow_id": dag_id}]}

    refused = door.ask("POST", DAGS, json=wrong)

    assert refused.status_code == 400
    assert refused.json()["errors"][0]["field"] == "workflow_id"


def test_the_client_joins_too(door: Door) -> None:
    with door.client() as client:
        first = client.tasks.create("a")
        second = client.tasks.create("b", workflow_id=first.dag_id)

        assert second.workflow_id == first.dag_id
        with pytest.raises(errors.OvernightError):
            client.tasks.create("c", workflow_id="dag_00000000000000000000000000")
