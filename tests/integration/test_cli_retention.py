"""Operators see how long rows are kept, and delete old ones through the API."""

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest

from overnight_server.domain.results import Returned
from overnight_server.domain.retention import RULES
from tests.support.api_user import ApiUser, serve_api
from tests.support.command import run
from tests.support.deployment import Deployment

ROUTE = "/api/v1/admin/retention"


@pytest.fixture
def admin(
    deployment: Deployment, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        admin = api_user.new_user(is_admin=True)
        admin.take_commands(monkeypatch)
        yield admin


def test_old_rows_are_shown_counted_and_deleted(admin: ApiUser) -> None:
    deployment = admin.deployment
    deployment.agent()
    for _ in range(3):
        deployment.settle(deployment.running(admin.user), Returned())
    deployment.move_clock(timedelta(days=91))

    shown = {rule["name"]: rule for rule in json.loads(run("retention", "show", "--json").stdout)}
    counted = json.loads(run("retention", "run", "--dry-run", "--json").stdout)
    assert deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 3
    deleted = run("retention", "run")

    assert list(shown) == [rule.name for rule in RULES]
    assert (shown["tasks"]["days"], shown["tasks"]["past_rows"]) == (90, 3)
    assert (shown["audit_log"]["days"], shown["audit_log"]["past_rows"]) == (None, None)
    assert shown["logs"]["setting"] == "OVERNIGHT_LOG_RETENTION_DAYS"
    assert counted["rows"]["tasks"] == 3
    assert ["tasks", "3"] in [line.split() for line in deleted.stdout.splitlines()]
    assert deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 0
    assert run("retention", "run").stdout == "Nothing is older than it is kept.\n"


def test_a_position_that_no_pass_has_returned_is_refused(admin: ApiUser) -> None:
    refused = admin.request("POST", f"{ROUTE}/run", json={"position": "graphs:7"})
    unknown = admin.request("POST", f"{ROUTE}/run", json={"position": "holes:", "dry_run": True})

    assert refused.status_code == 422
    assert "position" in refused.text
    assert unknown.json() == {"rows": {}, "dry_run": True, "position": None}
