"""Edits of waiting tasks over HTTP, guarded by ETags."""

from collections.abc import Iterator
from typing import Any

import pytest
from httpx2 import Response

from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import Deployment


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def edit(api_user: ApiUser, task_id: str, tag: str | None, **changes: Any) -> Response:
    headers = {} if tag is None else {"If-Match": tag}
    return api_user.request("PATCH", f"{TASKS}/{task_id}", json=changes, headers=headers)


def test_a_waiting_task_is_changed_with_its_etag(api_user: ApiUser) -> None:
    made = api_user.create(timeout_seconds=60, deadline_at="2999-01-01T00:00:00Z")
    task_id = made.json()["id"]
    tag = api_user.request("GET", f"{TASKS}/{task_id}").headers["etag"]

    answer = edit(
        api_user,
        task_id,
        tag,
        title="better",
        description="more",
        priority=1,
        tags=["night"],
        timeout_seconds=90,
        deadline_at=None,
    )

    task = answer.json()
    assert answer.status_code == 200, answer.text
    assert made.headers["etag"] == tag
    assert (task["title"], task["description"], task["priority"]) == ("better", "more", 1)
    assert (task["tags"], task["timeout_seconds"], task["deadline_at"]) == (["night"], 90, None)
    assert (
        answer.headers["etag"]
        == api_user.request("GET", f"{TASKS}/{task_id}").headers["etag"]
        != tag
    )


def test_absent_fields_stay_unchanged(api_user: ApiUser) -> None:
    made = api_user.create(timeout_seconds=60, deadline_at="2999-01-01T00:00:00Z", tags=["a"])

    task = edit(api_user, made.json()["id"], made.headers["etag"], title="x").json()

    assert (task["timeout_seconds"], task["tags"]) == (60, ["a"])
    assert task["deadline_at"].startswith("2999")


def test_a_more_urgent_task_moves_to_the_front(api_user: ApiUser) -> None:
    api_user.created()
    last = api_user.create()
    assert last.json()["position"] == 2

    assert (
        edit(api_user, last.json()["id"], last.headers["etag"], priority=2).json()["position"] == 1
    )


def test_an_edit_with_an_old_etag_is_refused(api_user: ApiUser) -> None:
    made = api_user.create()
    task_id, tag = made.json()["id"], made.headers["etag"]
    edit(api_user, task_id, tag, title="mine")

    answer = edit(api_user, task_id, tag, title="yours")

    assert (answer.status_code, answer.json()["code"]) == (412, "PRECONDITION_FAILED")
    assert api_user.request("GET", f"{TASKS}/{task_id}").json()["title"] == "mine"
    assert edit(api_user, task_id, "*", title="yours").json()["title"] == "yours"


def test_an_edit_without_if_match_is_refused(api_user: ApiUser) -> None:
    task_id = api_user.created()["id"]

    blind, odd = edit(api_user, task_id, None, title="x"), edit(api_user, task_id, "abc", title="x")

    assert (blind.status_code, blind.json()["code"]) == (428, "PRECONDITION_REQUIRED")
    assert (odd.status_code, odd.json()["errors"][0]["field"]) == (400, "If-Match")


def test_one_matching_etag_is_enough(api_user: ApiUser) -> None:
    made = api_user.create()

    tags = f'"other", {made.headers["etag"]}'

    assert edit(api_user, made.json()["id"], tags, title="x").status_code == 200


def test_a_claimed_task_is_not_changed(api_user: ApiUser) -> None:
    api_user.deployment.agent()
    task_id = api_user.created()["id"]
    api_user.deployment.claim()

    answer = edit(api_user, task_id, "*", title="x")

    assert (answer.status_code, answer.json()["code"]) == (409, "NOT_EDITABLE")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"state": "completed"}, "state"),
        ({"title": ""}, "title"),
        ({"priority": 5}, "priority"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"deadline_at": "tomorrow"}, "deadline_at"),
        ({"payload": {}}, "payload"),
    ],
)
def test_a_wrong_change_is_named(api_user: ApiUser, changes: dict[str, Any], field: str) -> None:
    answer = edit(api_user, api_user.created()["id"], "*", **changes)

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
