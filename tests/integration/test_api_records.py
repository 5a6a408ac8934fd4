"""Attempts, events, artifacts, notices and usage over HTTP."""

from collections.abc import Iterator

import pytest

from overnight_server.control.adjust_hours import adjust_hours
from overnight_server.domain.results import Raised, Returned
from tests.support.api_user import TASKS, ApiUser, serve_api
from tests.support.deployment import Deployment


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def test_attempts_are_listed_the_latest_first(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.agent()
    task = api_user.created(retry={"strategy": "immediate"}, max_attempts=3)
    for ending in (Raised("error", "no"), Returned("done")):
        [claimed] = deployment.claim().claims
        run = deployment.start(claimed)
        assert run is not None
        deployment.settle(run, ending)
        deployment.run("UPDATE tasks SET state = 'ready', retry_at = NULL WHERE state = 'retrying'")

    answer = api_user.request("GET", f"{TASKS}/{task['id']}/attempts")

    shown = answer.json()
    assert [item["epoch"] for item in shown] == [2, 1]
    assert (shown[1]["error_class"], shown[1]["error"], shown[1]["spent"]) == ("error", "no", True)
    assert shown[0]["ended_at"]
    first = api_user.request("GET", f"{TASKS}/{task['id']}/attempts", params={"limit": 1})
    rest = api_user.request("GET", first.headers["link"][1:].split(">")[0])
    assert [item["epoch"] for item in first.json() + rest.json()] == [2, 1]


def test_an_unclaimed_task_has_no_attempts(api_user: ApiUser) -> None:
    assert api_user.request("GET", f"{TASKS}/{api_user.created()['id']}/attempts").json() == []


def test_events_of_a_task_continue_after_an_id(api_user: ApiUser) -> None:
    task = api_user.created()
    api_user.request("DELETE", f"{TASKS}/{task['id']}")

    events = api_user.request("GET", f"{TASKS}/{task['id']}/events").json()
    rest = api_user.request(
        "GET", f"{TASKS}/{task['id']}/events", params={"after": events[0]["id"]}
    )

    assert [entry["state"] for entry in events] == ["ready", "cancelled"]
    assert rest.json() == events[1:]


def test_an_artifact_is_listed_read_and_downloaded(api_user: ApiUser) -> None:
    task = api_user.created()
    api_user.deployment.run(
        "INSERT INTO artifacts (id, task_id, user_id, epoch, name, kind, size, content)"
        " VALUES (gen_random_uuid(), :t, :u, 1, 'a b', 'json', 7, '[1, 2]'),"
        " (gen_random_uuid(), :t, :u, 1, 'page', 'text', 21, '<script>x</script>')",
        t=api_user.row_id(task["id"]),
        u=api_user.user,
    )

    listed = api_user.request("GET", f"{TASKS}/{task['id']}/artifacts").json()

    assert [item["name"] for item in listed] == ["a b", "page"]
    path = f"/api/v1/artifacts/{listed[0]['id']}"
    assert api_user.request("GET", path).json() == listed[0]
    assert api_user.request("GET", f"{path}/content").json() == [1, 2]
    page = api_user.request("GET", f"/api/v1/artifacts/{listed[1]['id']}/content")
    assert page.headers["content-disposition"].startswith("attachment")
    assert page.headers["content-type"].startswith("text/plain")
    assert page.headers["x-content-type-options"] == "nosniff"


def test_notices_are_paged(api_user: ApiUser) -> None:
    for n in range(3):
        api_user.deployment.run(
            "INSERT INTO notices (user_id, kind, subject) VALUES (:u, 'usage.50', :s)",
            u=api_user.user,
            s=str(n),
        )

    first = api_user.request("GET", "/api/v1/notices", params={"limit": 2})
    rest = api_user.request("GET", first.headers["link"][1:].split(">")[0])

    assert [item["subject"] for item in first.json() + rest.json()] == ["2", "1", "0"]
    assert "link" not in rest.headers


def test_usage_and_its_ledger_agree(api_user: ApiUser) -> None:
    adjust_hours(api_user.deployment.dispatcher, api_user.user, 2, note="a day of work")
    adjust_hours(api_user.deployment.dispatcher, api_user.user, -0.5, note="sorry")

    used = api_user.request("GET", "/api/v1/usage").json()
    lines = api_user.request("GET", "/api/v1/usage/ledger").json()

    assert used["hours_used"] == 1.5
    assert [entry["note"] for entry in lines] == ["sorry", "a day of work"]
    assert sum(entry["seconds"] for entry in lines) == 1.5 * 3600
    assert used["night"]["limit_usd"] is None


def test_a_user_reads_their_own_account(api_user: ApiUser) -> None:
    api_user.created()

    me = api_user.request("GET", "/api/v1/users/me").json()

    assert me["id"] == str(api_user.user)
    assert (me["waiting"], me["running"], me["paused"], me["window"]) == (1, 0, False, None)


@pytest.mark.parametrize("cursor", ["x", "-1", "٣", "9" * 30])
def test_a_malformed_cursor_is_refused(api_user: ApiUser, cursor: str) -> None:
    answer = api_user.request("GET", "/api/v1/notices", params={"before": cursor})

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "before")
