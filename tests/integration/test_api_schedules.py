"""Schedules over HTTP and through the Python client."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from overnight.errors import InvalidRequest, PreconditionFailed, ScheduleNotFound
from overnight_server.maintenance.schedules import fire_schedules
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.schedules import SETTINGS, at

SCHEDULES = "/api/v1/schedules"
TASK = {"title": "report {{ fire_date }}", "payload": {"to": "{{ schedule }}"}}
NIGHTLY = {
    "name": "nightly",
    "when": "every weekday at 22:00",
    "zone": "Europe/Berlin",
    "task": TASK,
}
# A Wednesday.
NOON = at("2026-07-01T12:00Z")


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        deployment.set_clock(NOON)
        yield api_user


def create(api_user: ApiUser, **fields: Any) -> dict[str, Any]:
    response = api_user.request("POST", SCHEDULES, json={**NIGHTLY, **fields})
    assert response.status_code == 201, response.text
    schedule: dict[str, Any] = response.json()
    return schedule


def sweep(api_user: ApiUser, now: datetime) -> None:
    api_user.deployment.set_clock(now)
    fire_schedules(api_user.deployment.dispatcher, SETTINGS)


def test_a_schedule_is_created_and_read(api_user: ApiUser) -> None:
    response = api_user.request("POST", SCHEDULES, json=NIGHTLY)

    made = response.json()
    assert response.status_code == 201
    assert response.headers["Location"] == f"{SCHEDULES}/{made['id']}"
    assert response.headers["ETag"] == '"1"'
    assert made["id"].startswith("schedule_")
    assert (made["name"], made["state"], made["cron"]) == ("nightly", "active", "0 22 * * 1-5")
    assert made["description"] == "At 22:00 on Monday through Friday, Europe/Berlin time"
    assert made["task"] == TASK
    assert [time["at"] for time in made["next"][:3]] == [
        "2026-07-01T20:00:00Z",
        "2026-07-02T20:00:00Z",
        "2026-07-03T20:00:00Z",
    ]
    assert made["next"][3]["words"] == "Mon 6 Jul 2026, 22:00 CEST"
    read = api_user.request("GET", f"{SCHEDULES}/{made['id']}?zone=America/New_York").json()
    assert read["next"][0]["words"] == "Wed 1 Jul 2026, 16:00 EDT"
    assert [each["id"] for each in api_user.request("GET", SCHEDULES).json()] == [made["id"]]
    times = api_user.request("GET", f"{SCHEDULES}/{made['id']}/next?count=2").json()
    assert times == made["next"][:2]


def test_schedules_are_listed_by_name_in_pages(api_user: ApiUser) -> None:
    for name in ("c", "a", "b"):
        create(api_user, name=name)

    first = api_user.request("GET", f"{SCHEDULES}?limit=2")
    second = api_user.request("GET", first.headers["Link"].split(">")[0].removeprefix("<"))

    assert [each["name"] for each in first.json()] == ["a", "b"]
    assert [each["name"] for each in second.json()] == ["c"]
    assert [each["name"] for each in api_user.request("GET", f"{SCHEDULES}?name=b").json()] == ["b"]


def test_secrets_in_a_template_are_masked(api_user: ApiUser) -> None:
    task = {"title": "x", "payload": {"password": "hunter2", "day": "{{ fire_date }}"}}

    made = create(api_user, task=task)

    assert "hunter2" not in str(made)
    assert made["task"]["payload"]["day"] == "{{ fire_date }}"


def test_an_edit_needs_the_edition_that_was_read(api_user: ApiUser) -> None:
    url = f"{SCHEDULES}/{create(api_user)['id']}"
    changes = {"when": "every day at 21:30"}

    without = api_user.request("PATCH", url, json=changes)
    changed = api_user.request("PATCH", url, json=changes, headers={"If-Match": '"1"'})
    stale = api_user.request("PATCH", url, json=changes, headers={"If-Match": '"1"'})

    assert (without.status_code, changed.status_code, stale.status_code) == (428, 200, 412)
    assert changed.headers["ETag"] == '"2"'
    assert (changed.json()["cron"], changed.json()["when"]) == ("30 21 * * *", changes["when"])
    assert changed.json()["next_fire_at"] == "2026-07-01T19:30:00Z"


def test_a_schedule_is_paused_resumed_and_deleted(api_user: ApiUser) -> None:
    url = f"{SCHEDULES}/{create(api_user)['id']}"

    assert api_user.request("POST", f"{url}/pause").json()["state"] == "paused"
    assert api_user.request("POST", f"{url}/pause").json()["state"] == "paused"
    assert api_user.request("POST", f"{url}/resume").json()["state"] == "active"
    assert api_user.request("DELETE", url).json()["deleted"] is True
    assert api_user.request("GET", url).status_code == 404
    assert api_user.request("DELETE", url).status_code == 404
    acts = {row["act"] for row in api_user.deployment.rows("SELECT act FROM audit_log")}
    assert {"schedule.added", "schedule.changed"} <= acts


def test_a_run_by_hand_with_the_same_key_runs_once(api_user: ApiUser) -> None:
    url = f"{SCHEDULES}/{create(api_user)['id']}"
    headers = {"Idempotency-Key": "monday"}

    first = api_user.request("POST", f"{url}/run", headers=headers)
    again = api_user.request("POST", f"{url}/run", headers=headers)

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    fire = first.json()
    assert (fire["kind"], fire["status"], fire["is_running"]) == ("manual", "queued", True)
    task = api_user.request("GET", f"/api/v1/tasks/{fire['task_id']}").json()
    assert (task["title"], task["source"]) == ("report 2026-07-01", "scheduler")
    assert (task["created_by"], task["payload"]) == ("cron:nightly", {"to": "nightly"})


def test_a_backfill_is_previewed_and_done(api_user: ApiUser) -> None:
    url = f"{SCHEDULES}/{create(api_user)['id']}"
    span = {"since": "2026-06-29T00:00:00Z", "until": "2026-07-01T00:00:00Z"}

    preview = api_user.request("POST", f"{url}/backfill", json={**span, "preview": True}).json()
    done = api_user.request("POST", f"{url}/backfill", json=span).json()
    sweep(api_user, NOON)

    assert (preview["total"], preview["added"], preview["preview"]) == (2, 2, True)
    assert done["fire_times"] == preview["fire_times"]
    fires = api_user.request("GET", f"{url}/fires").json()
    assert [(each["fire_time"], each["status"]) for each in fires] == [
        ("2026-06-30T20:00:00Z", "waiting"),
        ("2026-06-29T20:00:00Z", "queued"),
    ]


def test_the_history_of_a_schedule_is_read_in_pages(api_user: ApiUser) -> None:
    url = f"{SCHEDULES}/{create(api_user, when='every hour')['id']}"
    for hour in range(13, 16):
        sweep(api_user, at(f"2026-07-01T{hour}:00Z"))

    first = api_user.request("GET", f"{url}/fires?limit=2")
    second = api_user.request("GET", first.headers["Link"].split(">")[0].removeprefix("<"))
    skipped = api_user.request("GET", f"{url}/fires?status=skipped_overlap").json()

    assert [each["status"] for each in first.json()] == ["skipped_overlap"] * 2
    [queued] = second.json()
    assert queued["status"] == "queued"
    assert queued["last_queue_id"] == queued["task_id"]
    assert len(skipped) == 2
    assert api_user.request("GET", f"{url}/fires?status=done").status_code == 400


def test_a_preview_shows_fire_times_and_what_is_submitted(api_user: ApiUser) -> None:
    shown = api_user.request("POST", f"{SCHEDULES}/preview?count=2", json=NIGHTLY).json()

    assert shown["cron"] == "0 22 * * 1-5"
    assert [time["words"] for time in shown["next"]] == [
        "Wed 1 Jul 2026, 22:00 CEST",
        "Thu 2 Jul 2026, 22:00 CEST",
    ]
    assert shown["submits"] == {"title": "report 2026-07-01", "payload": {"to": "nightly"}}
    assert api_user.request("GET", SCHEDULES).json() == []


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"when": "now and then"}, 400, "when"),
        ({"zone": "Mars"}, 400, "zone"),
        ({"overlap": "never"}, 422, "overlap"),
        ({"graph": {"title": "g", "tasks": []}}, 400, "task"),
        ({"task": None}, 400, "task"),
        ({"task": {"title": ""}}, 422, "task.title"),
        ({"task": {"title": "{{ who }}"}}, 400, "task.title"),
        ({"jitter_seconds": -1}, 422, "jitter_seconds"),
        ({"name": "two words"}, 422, "name"),
    ],
)
def test_a_wrong_field_is_named(
    api_user: ApiUser, changes: dict[str, Any], status: int, field: str
) -> None:
    response = api_user.request("POST", SCHEDULES, json={**NIGHTLY, **changes})

    assert response.status_code == status, response.text
    assert field in [error["field"] for error in response.json()["errors"]]
    assert api_user.deployment.rows("SELECT 1 FROM schedules") == []


@pytest.mark.parametrize(
    ("since", "until", "field"),
    [
        ("2026-07-01T00:00:00Z", "2026-07-01T00:00:00Z", "until"),
        ("2026-07-01T00:00:00Z", "2026-08-01T00:00:00Z", "until"),
        ("2001-01-01T00:00:00Z", "2026-07-01T00:00:00Z", "since"),
    ],
)
def test_a_backfill_of_an_impossible_range_is_refused(
    api_user: ApiUser, since: str, until: str, field: str
) -> None:
    url = f"{SCHEDULES}/{create(api_user)['id']}/backfill"

    response = api_user.request("POST", url, json={"since": since, "until": until})

    assert response.status_code == 400
    assert [error["field"] for error in response.json()["errors"]] == [field]


def test_the_status_lists_schedules_as_jobs(api_user: ApiUser) -> None:
    create(api_user)
    create(api_user, name="new", when="every day at 23:30")
    api_user.request("POST", "/api/queue/task", json={"prompt": "tidy up", "source_job": "outside"})
    sweep(api_user, at("2026-07-01T20:00Z"))

    jobs = {job["name"]: job for job in api_user.request("GET", "/status").json()["jobs"]}

    assert set(jobs) == {"nightly", "new", "outside"}
    assert (jobs["nightly"]["last_status"], jobs["nightly"]["is_running"]) == ("queued", True)
    assert jobs["nightly"]["last_queue_id"].startswith("task_")
    assert jobs["nightly"]["last_run_at"] == "2026-07-01T20:00:00Z"
    assert jobs["nightly"]["next_run_at"] == "2026-07-02T20:00:00Z"
    assert (jobs["new"]["last_status"], jobs["new"]["last_run_at"]) == (None, None)
    assert (jobs["outside"]["last_status"], jobs["outside"]["next_run_at"]) == ("queued", None)


def test_the_client_has_every_operation(api_user: ApiUser) -> None:
    with api_user.client() as client:
        made = client.schedules.create("nightly", "every day at 22:00", task=TASK)
        assert list(client.schedules.list(name="nightly")) == [client.schedules.get(made.id)]
        shown = client.schedules.preview("b", "every hour", count=3, task=TASK)
        assert len(shown.next) == 3
        changed = client.schedules.edit(made.id, etag=f'"{made.edition}"', overlap="queue")
        assert changed.overlap == "queue"
        with pytest.raises(PreconditionFailed):
            client.schedules.edit(made.id, etag=f'"{made.edition}"', overlap="skip")
        assert client.schedules.pause(made.id).state == "paused"
        assert client.schedules.resume(made.id).state == "active"
        assert client.schedules.run(made.id).status == "queued"
        past = client.schedules.backfill(made.id, NOON - timedelta(days=2), NOON, preview=True)
        assert past.added == 2
        assert len(client.schedules.next_times(made.id, count=7)) == 7
        assert [fire.kind for fire in client.schedules.fires(made.id)] == ["manual"]
        assert client.schedules.delete(made.id).deleted
        with pytest.raises(ScheduleNotFound):
            client.schedules.get(made.id)
        with pytest.raises(InvalidRequest, match="either a task or a graph"):
            client.schedules.create("nightly", "every hour")
