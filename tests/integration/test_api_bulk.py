"""Bulk operations over HTTP and with the client: preview, start, follow and cancel."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from httpx2 import ASGITransport, Response

from overnight import AsyncClient, errors
from overnight.models.bulk import BulkOperation
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Raised
from overnight_server.maintenance.bulk import run_bulks
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import Deployment

BULK = "/api/v1/bulk"


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    deployment.agent()
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def start_bulk(
    api_user: ApiUser, action: str, headers: dict[str, str] | None = None, **body: Any
) -> Response:
    return api_user.request(
        "POST", f"{TASKS}/bulk", json={"action": action, **body}, headers=headers or {}
    )


def dead(api_user: ApiUser) -> str:
    run = api_user.deployment.running(api_user.user, max_attempts=1)
    api_user.deployment.settle(run, Raised("auth_failure", "no"))
    return show_task(run.claim.task_id)


def test_a_preview_changes_nothing(api_user: ApiUser) -> None:
    ids = [api_user.created(tags=["night"])["id"] for _ in range(7)]
    api_user.request("DELETE", f"{TASKS}/{ids[0]}")

    answer = start_bulk(api_user, "cancel", filter={"tag": "night"}, preview=True)

    assert answer.status_code == 200
    assert answer.json() == {
        "action": "cancel",
        "total": 7,
        "applies": 6,
        "sample": ids[:1:-1],
    }
    assert "location" not in answer.headers
    assert api_user.request("GET", BULK).json() == []


def test_a_bulk_operation_is_started_read_and_listed(api_user: ApiUser) -> None:
    failed = [dead(api_user) for _ in range(2)]

    answer = start_bulk(api_user, "retry", filter={"status": "failed"})

    begun = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"{BULK}/{begun['id']}"
    assert (begun["state"], begun["total"], begun["done"]) == ("running", 2, 0)
    assert begun["filter"] == {"status": "failed"}
    run_bulks(api_user.deployment.dispatcher)
    ended = api_user.request("GET", answer.headers["location"]).json()
    assert (ended["state"], ended["done"], ended["changed"]) == ("completed", 2, 2)
    assert ended["refused"] == {}
    assert ended["finished_at"] is not None
    states = [api_user.request("GET", f"{TASKS}/{task}").json()["state"] for task in failed]
    assert states == ["ready", "ready"]
    other = start_bulk(api_user, "reprioritise", filter={"type": "echo"}, priority=1).json()
    first = api_user.request("GET", BULK, params={"limit": 1})
    rest = api_user.request("GET", first.headers["link"][1:].split(">")[0])
    assert [item["id"] for item in first.json() + rest.json()] == [other["id"], begun["id"]]
    assert other["priority_score"] == 5


def test_a_bulk_operation_is_cancelled_once(api_user: ApiUser) -> None:
    begun = start_bulk(api_user, "cancel", filter={"tag": "a"}).json()

    stopped = api_user.request("POST", f"{BULK}/{begun['id']}/cancel")
    again = api_user.request("POST", f"{BULK}/{begun['id']}/cancel")

    assert (stopped.status_code, stopped.json()["state"]) == (200, "cancelled")
    assert (again.status_code, again.json()["code"]) == (409, "BULK_ALREADY_FINISHED")


def test_a_repeated_request_starts_one_operation(api_user: ApiUser) -> None:
    key = {"Idempotency-Key": "tonight"}

    first, again = (start_bulk(api_user, "cancel", key, filter={"tag": "a"}) for _ in range(2))

    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["location"] == first.headers["location"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"action": "cancel"}, 400, "filter"),
        ({"action": "cancel", "filter": {}, "preview": True}, 400, "filter"),
        ({"action": "cancel", "filter": {"tag": "a"}, "everything": True}, 400, "everything"),
        ({"action": "reprioritise", "filter": {"tag": "a"}}, 400, "priority"),
        ({"action": "retry", "filter": {"tag": "a"}, "priority": 1}, 400, "priority"),
        ({"action": "retry", "filter": {"status": "gone"}}, 400, "filter.status"),
        ({"action": "delete", "filter": {"tag": "a"}}, 422, "action"),
        ({"action": "retry", "filter": {"state": "failed"}}, 422, "filter.state"),
        ({"action": "retry", "filter": {"title": ""}}, 422, "filter.title"),
        ({"action": "retry", "filter": {"title": "a\0"}}, 422, "filter.title"),
        ({"action": "retry", "everything": "yes"}, 422, "everything"),
    ],
)
def test_a_contradictory_request_is_refused_with_its_field(
    api_user: ApiUser, body: dict[str, Any], status: int, field: str
) -> None:
    answer = api_user.request("POST", f"{TASKS}/bulk", json=body)

    assert answer.status_code == status, answer.text
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert api_user.deployment.rows("SELECT 1 FROM bulk_operations") == []


def test_bulk_operations_work_with_the_client(api_user: ApiUser) -> None:
    kept = api_user.created(title="keep")["id"]
    failed = dead(api_user)
    seen: list[BulkOperation] = []
    with api_user.client(sleep=lambda _: run_bulks(api_user.deployment.dispatcher)) as client:
        would = client.bulk.preview("retry", status="failed")
        started = client.bulk.start("retry", status="failed")
        ended = client.bulk.wait(started.id, on_progress=seen.append)

        assert (would.total, would.applies, would.sample) == (1, 1, [failed])
        assert (ended.state, ended.changed) == ("completed", 1)
        assert [item.is_final for item in seen] == [False, True]
        assert client.bulk.get(started.id) == ended
        moved = client.bulk.start("reprioritise", everything=True, priority_score=7)
        assert [operation.id for operation in client.bulk.list()] == [moved.id, started.id]
        assert client.bulk.cancel(moved.id).state == "cancelled"
        assert client.tasks.get(kept).priority == 3
        with pytest.raises(errors.BulkAlreadyFinished):
            client.bulk.cancel(moved.id)
        with pytest.raises(errors.BulkNotFound):
            client.bulk.get("bulk_00000000000000000000000000")
        with pytest.raises(errors.InvalidRequest, match="everything"):
            client.bulk.start("cancel")
        with pytest.raises(errors.InvalidRequest, match="action"):
            client.bulk.start("delete", everything=True)


def test_a_wait_that_times_out_reports_the_progress(api_user: ApiUser) -> None:
    with api_user.client(sleep=lambda _: None) as client:
        client.tasks.create("a task")
        started = client.bulk.start("cancel", title="task")

        with pytest.raises(errors.BulkWaitTimedOut, match="0 of 1 tasks done") as late:
            client.bulk.wait(started.id, timeout=0)

    assert late.value.bulk.id == started.id


def test_a_list_takes_every_filter_from_python(api_user: ApiUser) -> None:
    one = api_user.created(title="One", type="echo", tags=["a"], project_id="p", source="cli")
    api_user.created(title="two", type="other")
    with api_user.client() as client:
        for chosen in (
            {"title": "one"},
            {"type": "echo"},
            {"tag": "a"},
            {"project_id": "p"},
            {"source": "cli"},
        ):
            assert [task.id for task in client.tasks.list(**chosen)] == [one["id"]], chosen
        at = client.tasks.get(one["id"]).created_at
        assert [task.id for task in client.tasks.list(created_before=at)] == []
        assert len(list(client.tasks.list(created_after=at, status="pending", tag=None))) == 2


def test_the_single_queue_works_with_the_client(api_user: ApiUser) -> None:
    with api_user.client() as client:
        entry = client.queue.submit("tidy up", model="sonnet", timeout_seconds=60)

        assert (entry.position, entry.state) == (1, "pending")
        assert [task.prompt for task in client.queue.list().tasks] == ["tidy up"]
        assert client.queue.get(entry.queue_id).model == "sonnet"
        assert client.queue.cancel(entry.queue_id).state == "cancelled"
        assert client.queue.status().queue.depth == 0
        with pytest.raises(errors.InvalidRequest):
            client.queue.submit("")


def test_the_async_client_does_the_same(api_user: ApiUser) -> None:
    async def work() -> str:
        url, key = str(api_user.http.base_url), api_user.key
        app = ASGITransport(api_user.http.app)
        async with AsyncClient(url, key, transport=app, retries=0) as client:
            started = await client.bulk.start("cancel", tag="none")
            run_bulks(api_user.deployment.dispatcher)
            return (await client.bulk.wait(started.id)).state

    assert asyncio.run(work()) == "completed"
