"""Dead letters over HTTP: by how they failed, one by one, and resolved in three ways."""

from collections.abc import Iterator
from typing import Any

import pytest
from httpx2 import Response

from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Raised
from tests.support.door import TASKS, Door, open_door
from tests.support.house import House

LETTERS = "/api/v1/dead-letters"


@pytest.fixture
def door(house: House, database_url: str) -> Iterator[Door]:
    with open_door(house, database_url) as door:
        yield door


def dead(door: Door, error: str = "no", **fields: Any) -> str:
    run = door.house.running(door.user, max_attempts=1, **fields)
    door.house.settle(run, Raised("auth_failure", error))
    return show_task(run.claim.task_id)


def resolve(door: Door, task_id: str, resolution: str, **fields: Any) -> Response:
    body = {"resolution": resolution, **fields}
    return door.ask("POST", f"{LETTERS}/{task_id}/resolve", json=body)


@pytest.fixture(autouse=True)
def _worker(house: House) -> None:
    house.agent()


def test_failures_of_one_kind_are_one_group(door: Door) -> None:
    ids = [dead(door, f"no such file '/tmp/{n}' (errno {n})") for n in range(3)]
    dead(door, "timed out")

    groups = door.ask("GET", f"{LETTERS}/groups").json()

    assert [group["count"] for group in groups] == [3, 1]
    assert groups[0]["task_ids"] == ids[::-1]
    assert groups[0]["error"] == "no such file '/tmp/2' (errno 2)"
    only = door.ask("GET", LETTERS, params={"fingerprint": groups[0]["fingerprint"]}).json()
    assert [one["task_id"] for one in only] == ids[::-1]


def test_a_list_of_dead_letters_is_paged_and_open_unless_asked(door: Door) -> None:
    ids = [dead(door) for _ in range(3)]
    resolve(door, ids[1], "cancel", note="seen")

    first = door.ask("GET", LETTERS, params={"limit": 1})
    rest = door.ask("GET", first.headers["link"][1:].split(">")[0])

    assert [one["task_id"] for one in first.json() + rest.json()] == [ids[2], ids[0]]
    everything = door.ask("GET", LETTERS, params={"resolved": "true"}).json()
    assert [one["note"] for one in everything] == [None, "seen", None]


def test_a_dead_task_is_tried_again(door: Door) -> None:
    task_id = dead(door)

    answer = resolve(door, task_id, "retry", note="the key is there now", attempts=5)

    assert answer.json() == {"task_id": task_id, "resolution": "retry", "state": "ready"}
    task = door.ask("GET", f"{TASKS}/{task_id}").json()
    assert (task["attempts"], task["max_attempts"]) == (1, 6)
    letter = door.ask("GET", f"{LETTERS}/{task_id}").json()
    assert (letter["resolution"], letter["note"]) == ("retry", "the key is there now")


def test_a_dead_task_is_changed_and_tried_again(door: Door) -> None:
    task_id = dead(door, payload={"a": 1}, timeout_seconds=5)
    changes = {"payload": {"a": 2}, "title": "better", "timeout_seconds": None, "priority": 1}

    answer = resolve(door, task_id, "modify_and_retry", changes=changes)

    assert answer.json()["state"] == "ready"
    task = door.ask("GET", f"{TASKS}/{task_id}").json()
    assert (task["payload"], task["title"], task["priority"]) == ({"a": 2}, "better", 1)
    assert task["timeout_seconds"] is None


def test_a_dead_task_is_let_rest_once(door: Door) -> None:
    task_id = dead(door)

    assert resolve(door, task_id, "cancel").json()["state"] == "dead_lettered"
    again = resolve(door, task_id, "retry")
    assert (again.status_code, again.json()["code"]) == (409, "NOT_DEAD_LETTERED")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"resolution": "bury"}, "resolution"),
        ({"resolution": "retry", "changes": {"title": "x"}}, "changes"),
        ({"resolution": "modify_and_retry"}, "changes"),
        ({"resolution": "modify_and_retry", "changes": {}}, "changes"),
        ({"resolution": "modify_and_retry", "changes": {"state": "ready"}}, "changes.state"),
        ({"resolution": "retry", "attempts": 0}, "attempts"),
    ],
)
def test_a_resolution_that_makes_no_sense_is_refused(
    door: Door, body: dict[str, Any], field: str
) -> None:
    task_id = dead(door)

    answer = door.ask("POST", f"{LETTERS}/{task_id}/resolve", json=body)

    assert answer.status_code in {400, 422}
    assert answer.json()["errors"][0]["field"] == field
    assert door.ask("GET", f"{LETTERS}/{task_id}").json()["resolution"] is None
