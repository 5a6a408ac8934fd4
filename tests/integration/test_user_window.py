"""A user's own night window: set by its user over HTTP, from Python and by command."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

from overnight_server.store.db import APP, ActingUser, Db
from tests.support import logins
from tests.support.api_user import ApiUser, serve_api
from tests.support.command import run
from tests.support.deployment import Deployment
from tests.support.live_api import serve

WINDOW = "/api/v1/users/me/window"
BERLIN = {"zone": "Europe/Berlin", "opens": "22:00", "closes": "06:00"}


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        yield api_user


def test_a_user_sets_and_removes_their_window(api_user: ApiUser) -> None:
    other_user = api_user.new_user()

    changed = api_user.request("PUT", WINDOW, json={**BERLIN, "at_closing": "stop"})

    assert changed.status_code == 200, changed.text
    shown = changed.json()["window"]
    assert shown.pop("turns_at") is not None
    assert shown == {**BERLIN, "at_closing": "stop"}
    limits = api_user.request("GET", "/api/v1/users/me/limits").json()
    assert limits["window"] == "22:00-06:00 Europe/Berlin (stop)"
    assert other_user.request("GET", "/api/v1/users/me").json()["window"] is None
    trail = api_user.deployment.rows("SELECT actor, act FROM audit_log WHERE act = 'user.changed'")
    assert trail == [{"actor": f"user:{api_user.user}", "act": "user.changed"}]

    gone = api_user.request("DELETE", WINDOW)
    assert (gone.status_code, gone.json()["window"]) == (200, None)


def test_a_closed_window_delays_tasks_and_is_explained(api_user: ApiUser) -> None:
    api_user.deployment.agent()
    now = api_user.deployment.one("SELECT clock() AT TIME ZONE 'UTC' AS now")["now"]
    later = f"{(now.hour + 2) % 24:02}:00"
    until = f"{(now.hour + 3) % 24:02}:00"
    api_user.request("PUT", WINDOW, json={"zone": "UTC", "opens": later, "closes": until})
    api_user.created()

    assert api_user.deployment.claim().claims == []
    [held] = api_user.request("GET", "/api/v1/tasks/queue-status").json()["held_by"]
    assert held["code"] == "window"

    api_user.request("DELETE", WINDOW)
    assert len(api_user.deployment.claim().claims) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"zone": "Mars/Olympus"}, "zone"),
        ({"opens": "25:00"}, "opens"),
        ({"closes": "22:00"}, "closes"),
        ({"at_closing": "panic"}, "at_closing"),
        ({"closed": "06:00"}, "closed"),
    ],
)
def test_a_wrong_window_is_refused_by_its_field(
    api_user: ApiUser, change: dict[str, str], field: str
) -> None:
    answer = api_user.request("PUT", WINDOW, json=BERLIN | change)

    assert answer.status_code in (400, 422)
    assert answer.json()["code"] == "INVALID_REQUEST"
    assert answer.json()["errors"][0]["field"] == field


def test_a_read_only_key_cannot_set_a_window(api_user: ApiUser) -> None:
    looker = api_user.new_user(("tasks:read",))

    assert looker.request("PUT", WINDOW, json=BERLIN).status_code == 403
    assert looker.request("DELETE", WINDOW).status_code == 403


def test_a_user_can_change_only_their_own_window(deployment: Deployment, database_url: str) -> None:
    me, _other = deployment.user(), deployment.user()
    front = Db.connect(logins.for_api(database_url), role=APP, application_name="api", pool_size=1)
    try:
        mine = front.acting_for(ActingUser(me))
        for change in ("max_concurrent_agents = 50", "plan_tier = 'team'", "is_admin = true"):
            sql = text(f"UPDATE users SET {change}")
            with pytest.raises(ProgrammingError, match="permission denied"):
                mine.atomically(partial(Connection.execute, statement=sql))
        sql = text("UPDATE users SET window_at_closing = 'stop' RETURNING id")
        changed = mine.atomically(lambda tx: tx.execute(sql).scalars().all())
    finally:
        front.close()

    assert changed == [me]


def test_the_client_and_the_command_set_the_window(
    deployment: Deployment, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(deployment, database_url) as served:
        monkeypatch.chdir(tmp_path)
        for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("OVERNIGHT_URL", served.url)
        monkeypatch.setenv("OVERNIGHT_API_KEY", served.key)

        none = run("window")
        changed = run("window", "--zone", "Europe/Berlin", "--from", "22:00", "--to", "06:00")
        shown = json.loads(run("window", "--json").stdout)["window"]
        half = run("window", "--zone", "Europe/Berlin")
        wrong = run("window", "--zone", "Mars", "--from", "22:00", "--to", "06:00")
        off = run("window", "--off")

    assert none.stdout == "You have no window: your tasks start at any time.\n"
    assert changed.stdout == "Your tasks start 22:00-06:00 Europe/Berlin; at closing: finish.\n"
    assert (shown["opens"], shown["at_closing"]) == ("22:00", "finish")
    assert half.exit_code == wrong.exit_code == 2
    assert "Mars" in wrong.stderr
    assert off.stdout == none.stdout
