"""What happened in each hour: the table, the route of the API, and `overnight stats`."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from overnight_server.cli.main import app
from overnight_server.domain.results import Raised, Returned
from overnight_server.maintenance.queue_metrics import count_new_events
from tests.support.api_user import ApiUser
from tests.support.deployment import Deployment

EVENING = datetime(2026, 11, 19, 21, 40, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def night(deployment: Deployment, admin_cli: ApiUser) -> ApiUser:
    """Two hours: three tasks are submitted in the first one, and end in the second."""
    deployment.set_clock(EVENING)
    deployment.agent()
    user = admin_cli.user
    for attempts in (3, 3, 1):
        deployment.task(user, max_attempts=attempts)
    deployment.set_clock(EVENING + HOUR)
    first, second, third = (deployment.start(one) for one in deployment.claim().claims)
    assert first is not None
    assert second is not None
    assert third is not None
    deployment.settle(first, Returned(cost_usd=0.25))
    deployment.settle(second, Returned())
    deployment.settle(third, Raised("error", "no"))
    count_new_events(deployment.dispatcher)
    return admin_cli


def test_each_hour_has_the_columns_of_the_specification(
    deployment: Deployment, night: ApiUser
) -> None:
    first, second = deployment.rows("SELECT * FROM task_queue_metrics ORDER BY hour")

    assert first["hour"] == EVENING.replace(minute=0)
    assert (first["tasks_created"], first["tasks_completed"]) == (3, 0)
    assert (second["tasks_created"], second["tasks_completed"]) == (0, 2)
    assert (second["tasks_failed"], second["tasks_dead_lettered"]) == (1, 1)
    assert second["average_latency"] == 3600
    assert second["worker_heartbeat_delay"] == 3600
    assert second["error_rates_per_agent"] == {"test-host": 0.3333}
    assert second["cost_usd"] == 0.25


def test_what_is_counted_later_is_added_to_its_hour(deployment: Deployment, night: ApiUser) -> None:
    run = deployment.running(night.user)
    deployment.settle(run, Returned(cost_usd=0.5))

    count_new_events(deployment.dispatcher)

    _, second = deployment.rows("SELECT * FROM task_queue_metrics ORDER BY hour")
    assert (second["tasks_created"], second["tasks_completed"]) == (1, 3)
    assert second["average_latency"] == 2400
    assert second["error_rates_per_agent"] == {"test-host": 0.25}
    assert second["cost_usd"] == 0.75


def test_the_api_returns_every_hour_and_the_sum(night: ApiUser) -> None:
    with night.client() as client:
        found = client.admin.stats(hours=3)

    assert [hour.tasks_completed for hour in found.hours] == [0, 0, 0, 2]
    assert found.until_at == EVENING + HOUR
    assert found.total.tasks_created == 3
    assert found.total.error_rates_per_agent == {"test-host": 0.3333}
    assert found.total.wait_p50 == pytest.approx(3600, rel=0.2)
    assert found.hours[0].average_latency is None


def test_only_admins_read_the_statistics(night: ApiUser) -> None:
    assert night.new_user().request("GET", "/api/v1/admin/stats").status_code == 404
    assert night.request("GET", "/api/v1/admin/stats?hours=0").status_code == 400


def test_the_command_shows_the_night_as_a_table_with_bars(night: ApiUser) -> None:
    shown = CliRunner().invoke(app, ["stats", "--since", "2h"], terminal_width=200)

    assert shown.exit_code == 0, shown.output
    lines = [re.split(r"\s{2,}", line.strip()) for line in shown.output.splitlines()]
    assert any(line[1:4] == ["0", "2", "1"] and line[-1] == "█" * 16 + "░" * 8 for line in lines)
    assert ["done", "2", "█"] in lines
    assert ["error rates", "test-host 33.3%"] in lines


def test_the_command_prints_json_for_programs(night: ApiUser) -> None:
    shown = CliRunner().invoke(app, ["stats", "--since", "90m", "--json"])

    found = json.loads(shown.stdout)
    assert [hour["tasks_failed"] for hour in found["hours"]] == [0, 0, 1]
    assert found["total"]["cost_usd"] == 0.25
