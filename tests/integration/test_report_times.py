"""The morning report: recorded once a day at each user's time, and built when it is sent."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from overnight_server.domain.results import Returned
from overnight_server.store.db import Db
from overnight_server.store.notifications import record_due_reports
from tests.support.api_user import ApiUser, serve_api
from tests.support.command import run
from tests.support.deployment import Deployment
from tests.support.notifications import add_channel, outbox
from tests.support.receivers import http_receiver, notifying
from tests.support.wait import wait_until

PATH = "/api/v1/notifications/report-time"
DAY = timedelta(days=1)


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def set_time(deployment: Deployment, user: UUID, zone: str, at: str = "07:00") -> None:
    deployment.run(
        "INSERT INTO report_times VALUES (:u, :z, :a, next_daily(:z, CAST(:a AS time), clock()))",
        u=user,
        z=zone,
        a=at,
    )


def record(db: Db) -> int:
    return db.atomically(lambda tx: record_due_reports(tx, limit=100))


def test_a_report_is_recorded_once_on_each_day_over_changes_of_the_clocks(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    deployment.set_clock(datetime(2026, 3, 27, 12, tzinfo=UTC))
    users = {zone: deployment.user() for zone in ("Europe/Berlin", "America/New_York", "UTC")}
    for zone, user in users.items():
        add_channel(deployment, user, "report.morning")
        # 02:30 does not exist in Berlin on 29 March.
        set_time(deployment, user, zone, "02:30")
    rival = connect()

    for hours in range(1, 24 * 5):
        deployment.set_clock(datetime(2026, 3, 27, 12, tzinfo=UTC) + timedelta(hours=hours))
        record(deployment.dispatcher)
        record(rival)

    days = [f"2026-03-{day}" for day in (28, 29, 30, 31)]
    told = [(row["user_id"], row["subject"]) for row in outbox(deployment)]
    for user in users.values():
        assert [day for owner, day in told if owner == user][:4] == days
    assert len(told) == len(set(told))


def test_after_an_outage_there_is_one_report_for_the_last_day(deployment: Deployment) -> None:
    deployment.set_clock(datetime(2026, 7, 1, 12, tzinfo=UTC))
    user = deployment.user()
    add_channel(deployment, user)
    set_time(deployment, user, "Asia/Tokyo", "23:00")

    # It is 00:30 on the fifth in Tokyo: the report of the fourth is due.
    deployment.set_clock(datetime(2026, 7, 4, 15, 30, tzinfo=UTC))
    assert [record(deployment.dispatcher), record(deployment.dispatcher)] == [1, 0]
    deployment.set_clock(datetime(2026, 7, 5, 14, tzinfo=UTC))
    assert record(deployment.dispatcher) == 1

    assert [row["subject"] for row in outbox(deployment)] == ["2026-07-04", "2026-07-05"]


def test_a_report_says_what_is_true_when_it_is_sent(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    deployment.settle(deployment.running(user, title="Read the papers"), Returned({}))

    with http_receiver() as receiver:
        add_channel(
            deployment, user, "report.morning", url=receiver.url(), kind="slack", secret=None
        )
        set_time(deployment, user, "UTC")
        deployment.run("UPDATE report_times SET next_at = clock()")
        with notifying(deployment.dispatcher):
            wait_until(receiver.received, what="the report")
        [request] = receiver.requests

    assert request.json["text"].startswith("The only task is done")
    assert "Read the papers" in request.json["text"]


def test_who_subscribes_to_the_report_gets_a_time_for_it(api_user: ApiUser) -> None:
    api_user.deployment.run(
        "UPDATE users SET window_zone = 'Asia/Tokyo', window_from = '22:00',"
        " window_to = '06:00' WHERE id = :id",
        id=api_user.user,
    )
    assert api_user.request("GET", PATH).json()["at"] is None
    body = {"name": "a", "kind": "webhook", "address": "https://93.184.216.34/"}
    path = "/api/v1/notifications/channels"
    api_user.request("POST", path, json={**body, "kinds": ["usage.50"]})
    assert api_user.request("GET", PATH).json()["at"] is None

    api_user.request("PATCH", f"{path}/a", json={"kinds": ["report.morning"]})
    assert api_user.request("GET", PATH).json()["zone"] == "Asia/Tokyo"
    set_ = api_user.request("PUT", PATH, json={"zone": "UTC", "at": "08:30"})
    api_user.request("POST", path, json={**body, "name": "b", "kinds": ["report.morning"]})

    assert set_.status_code == 200, set_.text
    assert api_user.request("GET", PATH).json() == set_.json()
    assert (set_.json()["zone"], set_.json()["at"]) == ("UTC", "08:30")


@pytest.mark.parametrize(
    ("body", "legal"),
    [({"zone": "Mars/Phobos", "at": "07:00"}, "IANA"), ({"zone": "UTC", "at": "25:00"}, "at")],
)
def test_a_wrong_report_time_is_refused(
    api_user: ApiUser, body: dict[str, str], legal: str
) -> None:
    refused = api_user.request("PUT", PATH, json=body)

    assert refused.status_code in {400, 422}
    assert legal in refused.text


def test_the_command_shows_and_sets_the_time(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_user.take_commands(monkeypatch)

    none = run("notify", "report-time")
    changed = run("notify", "report-time", "7:15", "--zone", "Europe/Berlin")
    shown = json.loads(run("notify", "report-time", "--json").stdout)

    assert none.stdout == "no report is sent\n"
    assert changed.stdout.startswith("07:15 Europe/Berlin, next at ")
    assert (shown["at"], shown["zone"]) == ("07:15", "Europe/Berlin")
    assert run("notify", "report-time", "--zone", "UTC").exit_code != 0
