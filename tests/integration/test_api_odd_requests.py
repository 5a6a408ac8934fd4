"""Unusual requests that once caused a 500, and similar ones on every route."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.operations import operations
from tests.support.pull_agent import register_agent

# The caller chooses this name, so that an illegal one is an error of the request.
CHOSEN_NAMES = {"/api/v1/admin/agent-profiles/{profile}"}


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user.new_user(is_admin=True)


def test_a_nul_in_a_path_gets_404_on_every_route(api_user: ApiUser) -> None:
    operations_with_ids = [operation for operation in operations(api_user) if operation.ids]
    assert operations_with_ids

    for operation in operations_with_ids:
        answer = operation.call(api_user, dict.fromkeys(operation.ids, "%00"))

        if operation.path in CHOSEN_NAMES and operation.method == "PUT":
            assert answer.status_code == 400, f"{operation}"
            continue
        # The routes of runs are opened by the token of a claim.
        assert answer.status_code == (401 if operation.needs_claim_token else 404), f"{operation}"


def test_a_nul_in_a_query_is_refused_with_its_parameter(api_user: ApiUser) -> None:
    described = api_user.openapi()["paths"]
    asked = [
        (path, parameter["name"])
        for path, methods in described.items()
        for parameter in methods.get("get", {}).get("parameters", ())
        if parameter["in"] == "query" and parameter["schema"].get("type") == "string"
    ]
    assert len(asked) > 15

    for path, name in asked:
        answer = api_user.request("GET", path, params={name: "a\0b"})

        assert answer.status_code == 400, path
        assert [error["field"] for error in answer.json()["errors"]] == [name]


@pytest.mark.parametrize("wrong", [[], [None], False, 0, "text"])
def test_a_nested_value_that_is_not_an_object_is_refused_by_name(
    api_user: ApiUser, wrong: object
) -> None:
    asked: list[tuple[str, str, dict[str, Any], str]] = [
        ("POST", "/api/v1/dead-letters/task_0/resolve", {"resolution": "retry"}, "changes"),
        ("PATCH", f"/api/v1/admin/users/{api_user.user}", {}, "window"),
        ("POST", "/api/v1/dags/dag_0/triggers", {}, "graph"),
        ("POST", TASKS, {"title": "a"}, "retry"),
    ]
    for method, path, body, field in asked:
        answer = api_user.request(method, path, json={**body, field: wrong})

        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["field"] == field
        assert "JSON object" in answer.json()["errors"][0]["legal"]


@pytest.mark.parametrize(
    ("kind", "content", "status"),
    [
        ("bytes", "åy", 400),
        ("bytes", "YQ", 400),
        ("json", "[" * 100_000, 400),
        ("json", "9" * 5_000, 400),
        ("text", "\\ud800", 422),
        ("text", "\\u0000", 201),
    ],
)
def test_an_artifact_that_cannot_be_stored_is_refused(
    api_user: ApiUser, kind: str, content: str, status: int
) -> None:
    api_user.created()
    agent = register_agent(api_user)
    work = agent.begin()
    headers = {"Authorization": f"Bearer {work['token']}", "Content-Type": "application/json"}
    sent = f'{{"name": "a", "kind": "{kind}", "content": "{content}"}}'.encode()

    answer = api_user.http.post(
        f"{TASKS}/{work['task_id']}/artifacts", headers=headers, content=sent
    )

    assert answer.status_code == status, answer.text
    if status != 201:
        assert answer.json()["errors"][0]["field"] == "content"


def test_a_whole_number_may_be_written_with_a_point(api_user: ApiUser) -> None:
    assert api_user.created(priority=2.0)["priority"] == 2
    assert api_user.create(priority=2.5).status_code == 422


@pytest.mark.parametrize("instant", [1_900_000_000, "1900000000", 1.9e9, True])
def test_an_instant_is_written_out(api_user: ApiUser, instant: object) -> None:
    request = {"since": instant} if isinstance(instant, str) else None

    assert api_user.create(deadline_at=instant).status_code == 422
    if request is not None:
        assert api_user.request("GET", "/api/v1/admin/audit", params=request).status_code == 400


def test_an_edge_to_an_unknown_task_of_a_batch_is_named(api_user: ApiUser) -> None:
    body = {"tasks": [{"title": "a"}], "edges": [{"parent": 0, "child": 1}]}

    answer = api_user.request("POST", "/api/v1/plan", json=body)

    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {
            "field": "edges.0.child",
            "message": "names no task of the batch",
            "legal": "a whole number from 0 to 0",
        }
    ]


def test_a_refused_field_is_named_once(api_user: ApiUser) -> None:
    answer = api_user.request("GET", TASKS, params={"status": "finished"}).json()

    [wrong] = answer["errors"]
    assert (wrong["field"], wrong["message"]) == ("status", "is not a status of a task")
    assert answer["detail"] == f"status: is not a status of a task; legal: {wrong['legal']}"


def test_the_detail_of_an_error_lists_legal_values(api_user: ApiUser) -> None:
    answer = api_user.create(priority=9).json()

    assert answer["detail"] == "priority: is too large; legal: a whole number from 1 to 4"


@pytest.mark.parametrize(
    ("path", "name", "legal"),
    [
        (TASKS, "created_after", "an instant with an offset, such as 2030-01-31T07:00:00Z"),
        (TASKS, "limit", "a whole number from 1 to 100"),
        (f"{TASKS}/task_0/wait", "timeout", "a whole number from 0 to 60"),
    ],
)
def test_the_error_for_a_wrong_query_value_lists_legal_values(
    api_user: ApiUser, path: str, name: str, legal: str
) -> None:
    answer = api_user.request("GET", path, params={name: "yesterday"}).json()

    [wrong] = answer["errors"]
    assert (wrong["field"], wrong["legal"]) == (name, legal)
    assert answer["detail"] == f"{name}: {wrong['message']}; legal: {legal}"
