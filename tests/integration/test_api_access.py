"""Authentication and authorization: keys, scopes, and tasks of other users."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from overnight_server.api.main import ROUTES
from overnight_server.control.keys import issue, key_id_of, new_key, revoke
from overnight_server.domain.ids import new_task_id, show_task
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import Deployment

EVERYWHERE = [
    ("POST", TASKS),
    ("GET", TASKS),
    ("GET", f"{TASKS}/queue-status"),
    ("GET", f"{TASKS}/forecast"),
    ("POST", "/api/v1/plan"),
    ("GET", f"{TASKS}/task_01J00000000000000000000000"),
    ("DELETE", f"{TASKS}/task_01J00000000000000000000000"),
    ("POST", "/api/v1/dags"),
    ("POST", "/api/v1/dags/plan"),
    ("GET", "/api/v1/dags"),
    ("GET", "/api/v1/dags/dag_01J00000000000000000000000"),
    ("DELETE", "/api/v1/dags/dag_01J00000000000000000000000"),
    ("POST", "/api/v1/dags/dag_01J00000000000000000000000/retry"),
    ("POST", f"{TASKS}/task_01J00000000000000000000000/retry"),
    ("POST", f"{TASKS}/task_01J00000000000000000000000/fork"),
    ("GET", "/api/v1/users/me/limits"),
]


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def test_every_task_route_refuses_a_request_without_a_key(api_user: ApiUser) -> None:
    for method, path in EVERYWHERE:
        answer = api_user.http.request(
            method, path, json={"title": "a"} if method == "POST" else None
        )

        assert answer.status_code == 401, path
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.json()["code"] == "UNAUTHENTICATED"


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic b3Zlcjpu"},
        {"Authorization": f"Bearer {new_key()}"},
        {"Authorization": "Bearer overnight_live_x_y_z"},
        {"Authorization": f"Bearer {'x' * 7000}"},
        {"X-API-Key": new_key()},
        {"X-API-Key": "' OR 1=1; --"},
        {"Cookie": "key=1"},
    ],
)
def test_an_invalid_key_is_refused(api_user: ApiUser, headers: dict[str, str]) -> None:
    assert api_user.http.get(TASKS, headers=headers).status_code == 401


@pytest.mark.parametrize("form", ["Authorization", "X-API-Key", "lower"])
def test_a_key_is_accepted_in_either_header(api_user: ApiUser, form: str) -> None:
    headers = {
        "Authorization": {"Authorization": f"Bearer {api_user.key}"},
        "X-API-Key": {"X-API-Key": api_user.key},
        "lower": {"authorization": f"bearer {api_user.key}"},
    }[form]

    assert api_user.http.get(TASKS, headers=headers).status_code == 200


def test_a_revoked_key_is_refused_at_once(api_user: ApiUser) -> None:
    assert api_user.request("GET", TASKS).status_code == 200

    assert revoke(api_user.deployment.app, key_id_of(api_user.key))

    assert api_user.request("GET", TASKS).status_code == 401
    assert not revoke(api_user.deployment.app, key_id_of(api_user.key))


def test_an_expired_key_is_refused(api_user: ApiUser) -> None:
    api_user.key = issue(
        api_user.deployment.app, api_user.user, name="short", expires_in=timedelta(hours=1)
    )
    headers = {"Authorization": f"Bearer {api_user.key}"}
    assert api_user.http.get(TASKS, headers=headers).status_code == 200

    api_user.deployment.move_clock(timedelta(hours=1))

    assert api_user.http.get(TASKS, headers=headers).status_code == 401


def test_a_key_that_may_only_read_can_change_nothing(api_user: ApiUser) -> None:
    task = api_user.created()
    reader = ApiUser(
        api_user.http,
        api_user.deployment,
        api_user.user,
        issue(api_user.deployment.app, api_user.user, name="reader", scopes=("tasks:read",)),
    )

    refused = [reader.create(), reader.request("DELETE", f"{TASKS}/{task['id']}")]

    assert reader.request("GET", f"{TASKS}/{task['id']}").json() == task
    assert [(answer.status_code, answer.json()["code"]) for answer in refused] == [
        (403, "FORBIDDEN")
    ] * 2
    assert api_user.request("GET", TASKS).json() == [task]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_foreign_unknown_and_malformed_ids_get_the_same_response(
    api_user: ApiUser, method: str
) -> None:
    foreign = api_user.new_user().created()["id"]
    ids = [
        foreign,
        show_task(new_task_id()),
        foreign.replace("task_", "dag_"),
        "task_",
        "nonsense",
        "task_%00",
        "task_" + "Z" * 26,
        "7b0e4c2e-0000-4000-8000-000000000000",
        "x" * 2000,
        "%F0%9F%8C%99",
    ]

    answers = [api_user.request(method, f"{TASKS}/{each}") for each in ids]

    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].json()["code"] == "TASK_NOT_FOUND"
    headers = [
        {name: value for name, value in answer.headers.items() if name != "date"}
        for answer in answers
    ]
    assert all(each == headers[0] for each in headers)


def test_another_users_cursor_reveals_nothing(api_user: ApiUser) -> None:
    mine = api_user.created()["id"]
    foreign = api_user.new_user().created()["id"]

    listed = api_user.request("GET", f"{TASKS}?before={foreign}").json()

    assert [task["id"] for task in listed] == [mine]


def test_a_user_neither_sees_nor_counts_tasks_of_others(api_user: ApiUser) -> None:
    other_user = api_user.new_user()
    other_user.created()

    assert api_user.request("GET", TASKS).json() == []
    assert api_user.request("GET", f"{TASKS}/queue-status").json()["pending"] == 0


def test_every_response_has_security_headers_and_a_media_type(api_user: ApiUser) -> None:
    answers = [
        api_user.create(),
        api_user.request("GET", TASKS),
        api_user.request("GET", f"{TASKS}/nonsense"),
        api_user.request("GET", "/nowhere"),
        api_user.http.get(TASKS),
        api_user.http.get("/health"),
    ]

    for answer in answers:
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "NOT_FOUND"),
        ("GET", f"{TASKS}/", 404, "NOT_FOUND"),
        ("PUT", TASKS, 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/docs", 404, "NOT_FOUND"),
    ],
)
def test_an_unknown_path_gets_a_problem_response(
    api_user: ApiUser, method: str, path: str, status: int, code: str
) -> None:
    answer = api_user.request(method, path)

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"


def test_openapi_lists_every_route(api_user: ApiUser) -> None:
    """The routes are listed in docs/reference/http.md, which another test checks."""
    described = api_user.openapi()["paths"]
    served = {route.path for module in ROUTES for route in module.router.routes}

    assert len(served) > 50
    assert set(described) == served
