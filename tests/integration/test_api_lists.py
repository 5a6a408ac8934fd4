"""Filters of the list of tasks over HTTP."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from overnight_server.domain.results import Returned
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import Deployment


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def titles(api_user: ApiUser, **params: Any) -> list[str]:
    answer = api_user.request("GET", TASKS, params=params)
    assert answer.status_code == 200, answer.text
    return [task["title"] for task in answer.json()]


def test_a_list_is_filtered_by_every_given_criterion(api_user: ApiUser) -> None:
    api_user.created(
        title="Nightly build", type="echo", tags=["ci"], project_id="site", source="cli"
    )
    api_user.created(title="nightly report", type="sleep", tags=["ci", "mail"], project_id="site")
    api_user.created(title="100% done_deal", type="sleep")

    assert titles(api_user, type="sleep") == ["100% done_deal", "nightly report"]
    assert titles(api_user, tag="ci") == ["nightly report", "Nightly build"]
    assert titles(api_user, project_id="site", type="echo") == ["Nightly build"]
    assert titles(api_user, source="cli") == ["Nightly build"]
    assert titles(api_user, title="NIGHTLY") == ["nightly report", "Nightly build"]
    assert titles(api_user, title="%") == titles(api_user, title="_") == ["100% done_deal"]
    assert titles(api_user, tag="nothing") == []
    assert titles(api_user.new_user(), tag="ci") == []


def test_a_list_is_filtered_by_creation_time(api_user: ApiUser) -> None:
    first = api_user.created(title="first")
    api_user.deployment.run("UPDATE tasks SET created_at = created_at - interval '1 day'")
    second = api_user.created(title="second")

    assert titles(api_user, created_after=second["created_at"]) == ["second"]
    assert titles(api_user, created_before=second["created_at"]) == ["first"]
    assert titles(api_user, created_after="2001-01-01T00:00:00Z") == ["second", "first"]
    assert first["id"] != second["id"]


def test_a_list_is_filtered_by_graph(api_user: ApiUser) -> None:
    first = api_user.created(title="first")
    api_user.created(title="other")
    api_user.created(title="second", workflow_id=first["dag_id"])
    stranger = api_user.new_user()

    assert titles(api_user, dag_id=first["dag_id"]) == ["second", "first"]
    assert titles(api_user, dag_id=first["dag_id"], title="first") == ["first"]
    assert titles(stranger, dag_id=first["dag_id"]) == []
    client = api_user.client()
    assert [task.title for task in client.tasks.list(dag_id=first["dag_id"])] == ["second", "first"]


def test_a_list_is_filtered_by_end_time(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.agent()
    for title in ("early", "late"):
        deployment.settle(deployment.running(api_user.user, title=title), Returned())
        deployment.move_clock(timedelta(hours=1))
    api_user.created(title="open")
    [late, early] = api_user.client().tasks.list(status="completed")
    assert late.completed_at is not None
    end = late.completed_at.isoformat()

    assert titles(api_user, ended_after=end) == ["late"]
    assert titles(api_user, ended_before=end) == ["early"]
    assert early.completed_at is not None
    assert titles(api_user, ended_after=early.completed_at.isoformat(), limit=1) == ["late"]


def test_a_filter_applies_to_every_page(api_user: ApiUser) -> None:
    for n in range(5):
        api_user.created(title=f"t{n}", tags=["odd" if n % 2 else "even"])

    first = api_user.request("GET", TASKS, params={"tag": "even", "limit": 2})
    rest = api_user.request("GET", first.headers["link"][1:].split(">")[0])

    assert [item["title"] for item in first.json() + rest.json()] == ["t4", "t2", "t0"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("created_after", "yesterday"),
        ("created_before", "2020-01-01"),
        ("title", "a\0b"),
        ("ended_after", "now"),
        ("dag_id", "nonsense"),
    ],
)
def test_an_invalid_filter_is_refused(api_user: ApiUser, name: str, value: str) -> None:
    answer = api_user.request("GET", TASKS, params={name: value})

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, name)


def test_a_misspelled_filter_is_refused(api_user: ApiUser) -> None:
    answer = api_user.request("GET", TASKS, params={"stauts": "failed"})

    assert answer.status_code == 400
    [wrong] = answer.json()["errors"]
    assert wrong["field"] == "stauts"
    assert wrong["message"] == "is not a known parameter; did you mean status?"
    legal_values = wrong["legal"].removeprefix("one of ").split(", ")
    assert {"status", "created_after", "limit"} <= set(legal_values)


def test_an_unknown_query_parameter_is_refused(api_user: ApiUser) -> None:
    described = api_user.openapi()["paths"]
    # Runs are opened by the token of a claim, what admins do is not there, and anybody may look
    # whether the service lives.
    asked = [
        path
        for path, methods in described.items()
        if not {"runs", "admin", "health"} & set(methods.get("get", {"tags": ["runs"]})["tags"])
    ]
    assert len(asked) > 30

    for path in asked:
        answer = api_user.request("GET", path, params={"nonsense": "1"})

        assert answer.status_code == 400, (path, answer.text)
        assert [error["field"] for error in answer.json()["errors"]] == ["nonsense"]
