"""Edits of waiting tasks over HTTP, guarded by ETags."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from httpx2 import Response

from overnight.errors import PreconditionFailed
from overnight_server.control.edit import TaskEdit
from overnight_server.control.edit import edit as edit_task
from overnight_server.domain.ids import parse_task, show_task
from overnight_server.domain.results import Raised, Returned
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.maintenance.promote import promote
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import LOOSE, Deployment
from tests.support.rivals import Connect, Rival, meet_at_lane

HOUR = timedelta(hours=1)


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def edit(api_user: ApiUser, task_id: str, tag: str | None, **changes: Any) -> Response:
    headers = {} if tag is None else {"If-Match": tag}
    return api_user.request("PATCH", f"{TASKS}/{task_id}", json=changes, headers=headers)


def in_an_hour(deployment: Deployment) -> datetime:
    now: datetime = deployment.one("SELECT clock() AS now")["now"]
    return now + HOUR


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
        ({"payload": "x"}, "payload"),
    ],
)
def test_a_wrong_change_is_named(api_user: ApiUser, changes: dict[str, Any], field: str) -> None:
    answer = edit(api_user, api_user.created()["id"], "*", **changes)

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


def test_payload_and_start_of_a_task_are_changed(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.agent()
    made = api_user.create(payload={"pages": 1})
    task_id = made.json()["id"]
    at = in_an_hour(deployment)

    answer = edit(
        api_user, task_id, made.headers["etag"], payload={"pages": 2}, start_at=at.isoformat()
    )

    changed = answer.json()
    assert (changed["payload"], changed["state"]) == ({"pages": 2}, "pending")
    assert datetime.fromisoformat(changed["start_at"]) == at
    assert answer.headers["etag"] != made.headers["etag"]
    assert not deployment.claim().claims
    # The old version of the task cannot be edited any more.
    late = edit(api_user, task_id, made.headers["etag"], payload={"pages": 3})
    assert (late.status_code, late.json()["code"]) == (412, "PRECONDITION_FAILED")

    deployment.move_clock(2 * HOUR)
    assert promote(deployment.dispatcher) == 1
    assert len(deployment.claim().claims) == 1


@pytest.mark.parametrize("start_at", [None, "2020-01-01T00:00:00Z"])
def test_a_task_whose_start_is_removed_is_ready_at_once(
    api_user: ApiUser, start_at: str | None
) -> None:
    deployment = api_user.deployment
    deployment.agent()
    task_id = api_user.created(start_at=in_an_hour(deployment).isoformat())["id"]

    assert edit(api_user, task_id, "*", start_at=start_at).json()["state"] == "ready"

    assert len(deployment.claim().claims) == 1


def test_a_later_start_of_a_task_with_parents_applies_when_they_have_ended(
    api_user: ApiUser,
) -> None:
    deployment = api_user.deployment
    deployment.agent()
    first, second = (
        submitted.task_id
        for submitted in submit_graph(
            deployment.app,
            api_user.user,
            [NewTask("first", "echo"), NewTask("second", "echo")],
            LOOSE,
            edges=[Edge(0, 1)],
        )
    )
    at = in_an_hour(deployment).isoformat()
    assert edit(api_user, show_task(second), "*", start_at=at).json()["state"] == "pending"
    [claimed] = deployment.claim().claims
    run = deployment.start(claimed)
    assert run is not None
    assert run.claim.task_id == first

    deployment.settle(run, Returned())

    assert (deployment.state(second), deployment.row(second)["awaits_start"]) == ("pending", True)


def test_the_start_of_a_task_that_has_run_cannot_be_changed(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.agent()
    run = deployment.running(api_user.user)
    deployment.settle(run, Raised("error", "no luck"))
    task_id = show_task(run.claim.task_id)

    refused = edit(api_user, task_id, "*", start_at=in_an_hour(deployment).isoformat())
    changed = edit(api_user, task_id, "*", payload={"pages": 2})

    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "start_at")
    assert (changed.json()["state"], changed.json()["payload"]) == ("retrying", {"pages": 2})


def test_of_two_edits_of_one_version_only_the_first_is_applied(
    api_user: ApiUser, connect: Connect
) -> None:
    deployment = api_user.deployment
    made = api_user.create()
    task_id = parse_task(made.json()["id"])
    version = made.headers["etag"].strip('"')
    first, second = (
        Rival(
            connect,
            f"edit {pages}",
            edit_task,
            api_user.user,
            task_id,
            TaskEdit(payload={"pages": pages}, start_at=in_an_hour(deployment)),
            editions=[version],
            actor="user:test",
        )
        for pages in (1, 2)
    )

    with pytest.raises(PreconditionFailed):
        meet_at_lane(connect, api_user.user, first, second)

    assert deployment.row(task_id)["payload"] == {"pages": 1}
    assert deployment.state(task_id) == "pending"
