"""Dead letters over HTTP: list, group and resolve them."""

from collections.abc import Iterator
from typing import Any

import pytest
from httpx2 import Response

from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Raised
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import Deployment

LETTERS = "/api/v1/dead-letters"


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def dead(api_user: ApiUser, error: str = "no", **fields: Any) -> str:
    run = api_user.deployment.running(api_user.user, max_attempts=1, **fields)
    api_user.deployment.settle(run, Raised("auth_failure", error))
    return show_task(run.claim.task_id)


def resolve(api_user: ApiUser, task_id: str, resolution: str, **fields: Any) -> Response:
    body = {"resolution": resolution, **fields}
    return api_user.request("POST", f"{LETTERS}/{task_id}/resolve", json=body)


@pytest.fixture(autouse=True)
def _worker(deployment: Deployment) -> None:
    deployment.agent()


def test_failures_of_one_kind_are_one_group(api_user: ApiUser) -> None:
    ids = [dead(api_user, f"no such file '/tmp/{n}' (errno {n})") for n in range(3)]
    dead(api_user, "timed out")

    groups = api_user.request("GET", f"{LETTERS}/groups").json()

    assert [group["count"] for group in groups] == [3, 1]
    assert groups[0]["task_ids"] == ids[::-1]
    assert groups[0]["error"] == "no such file '/tmp/2' (errno 2)"
    only = api_user.request("GET", LETTERS, params={"fingerprint": groups[0]["fingerprint"]}).json()
    assert [letter["task_id"] for letter in only] == ids[::-1]


def test_dead_letters_are_paged_and_resolved_ones_left_out(api_user: ApiUser) -> None:
    ids = [dead(api_user) for _ in range(3)]
    resolve(api_user, ids[1], "cancel", note="seen")

    first = api_user.request("GET", LETTERS, params={"limit": 1})
    rest = api_user.request("GET", first.headers["link"][1:].split(">")[0])

    assert [item["task_id"] for item in first.json() + rest.json()] == [ids[2], ids[0]]
    everything = api_user.request("GET", LETTERS, params={"resolved": "true"}).json()
    assert [letter["note"] for letter in everything] == [None, "seen", None]


def test_a_dead_letter_is_retried(api_user: ApiUser) -> None:
    task_id = dead(api_user)

    answer = resolve(api_user, task_id, "retry", note="the key is there now", attempts=5)

    assert answer.json() == {"task_id": task_id, "resolution": "retry", "state": "ready"}
    task = api_user.request("GET", f"{TASKS}/{task_id}").json()
    assert (task["attempts"], task["max_attempts"]) == (1, 6)
    letter = api_user.request("GET", f"{LETTERS}/{task_id}").json()
    assert (letter["resolution"], letter["note"]) == ("retry", "the key is there now")


def test_a_dead_letter_is_changed_and_retried(api_user: ApiUser) -> None:
    task_id = dead(api_user, payload={"a": 1}, timeout_seconds=5)
    changes = {"payload": {"a": 2}, "title": "better", "timeout_seconds": None, "priority": 1}

    answer = resolve(api_user, task_id, "modify_and_retry", changes=changes)

    assert answer.json()["state"] == "ready"
    task = api_user.request("GET", f"{TASKS}/{task_id}").json()
    assert (task["payload"], task["title"], task["priority"]) == ({"a": 2}, "better", 1)
    assert task["timeout_seconds"] is None


def test_a_dead_letter_is_cancelled_once(api_user: ApiUser) -> None:
    task_id = dead(api_user)

    assert resolve(api_user, task_id, "cancel").json()["state"] == "cancelled"
    again = resolve(api_user, task_id, "retry")
    assert (again.status_code, again.json()["code"]) == (409, "NOT_DEAD_LETTERED")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"resolution": "delete"}, "resolution"),
        ({"resolution": "retry", "changes": {"title": "x"}}, "changes"),
        ({"resolution": "modify_and_retry"}, "changes"),
        ({"resolution": "modify_and_retry", "changes": {}}, "changes"),
        ({"resolution": "modify_and_retry", "changes": {"state": "ready"}}, "changes.state"),
        ({"resolution": "retry", "attempts": 0}, "attempts"),
    ],
)
def test_a_contradictory_resolution_is_refused(
    api_user: ApiUser, body: dict[str, Any], field: str
) -> None:
    task_id = dead(api_user)

    answer = api_user.request("POST", f"{LETTERS}/{task_id}/resolve", json=body)

    assert answer.status_code in {400, 422}
    assert answer.json()["errors"][0]["field"] == field
    assert api_user.request("GET", f"{LETTERS}/{task_id}").json()["resolution"] is None
