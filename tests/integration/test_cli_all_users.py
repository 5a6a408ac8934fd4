"""Commands of admins for tasks of all users, and for users."""

import json
from datetime import timedelta

import pytest

from overnight.errors import InvalidRequest
from overnight_server.cli.terminal.failures import Code
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Returned
from overnight_server.insight.fairness_report import fairness
from tests.support.api_user import ApiUser
from tests.support.command import run
from tests.support.deployment import CLAIM_SETTINGS, Deployment

pytestmark = pytest.mark.usefixtures("admin_cli")


def test_an_admin_shows_a_task_of_any_user(deployment: Deployment) -> None:
    user = deployment.user(name="ada")
    task = show_task(deployment.task(user, title="say hello"))

    shown = run("get", task[-8:], "--all-users")
    explained = run("explain", task, "--all-users", "--json")
    foretold = run("forecast", task, "--all-users")
    listed = run("list", "--user", "ada", "--status", "pending")

    assert "say hello" in shown.stdout, shown.stderr
    assert json.loads(explained.stdout)["reasons"][0]["code"] == "no_worker"
    assert "no worker is alive" in foretold.stderr
    assert task in listed.stdout


def test_unknown_users_and_tasks_are_refused(deployment: Deployment) -> None:
    deployment.user(name="ada")

    assert run("list", "--user", "bob").exit_code == Code.FAILED
    assert run("forecast", "--all-users").exit_code == Code.USAGE
    assert run("list", "--user", "ada", "--status", "odd").exit_code == Code.USAGE
    assert run("get", "task_01J8K0000000000000000000AA", "--all-users").exit_code == Code.FAILED


@pytest.mark.parametrize("name", ["ada lovelace", "", "a/b", "a" * 101, "a;b"])
def test_an_invalid_user_name_is_refused(name: str) -> None:
    refused = run("user", "add", name)

    assert refused.exit_code == Code.USAGE
    assert refused.stderr.startswith("Error: name: ")


def test_a_user_is_renamed_unless_the_name_is_taken(deployment: Deployment) -> None:
    deployment.user(name="ada")
    deployment.user(name="bob")

    renamed = run("user", "rename", "ada", "ada@lovelace.org")
    taken = run("user", "rename", "bob", "ada@lovelace.org")

    assert renamed.stdout == "Renamed ada to ada@lovelace.org.\n", renamed.stderr
    assert taken.exit_code == Code.USAGE
    assert "is the name of another user" in taken.stderr


def test_limits_show_the_night_budget_and_exceptions(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(name="ada", night_budget_usd=4)
    deployment.settle(deployment.running(user, max_cost_usd=2.0), Returned(cost_usd=1.5))
    deployment.running(user, max_cost_usd=1.0)
    run("user", "limits", "ada", "--hours", "7")

    shown = run("user", "limits", "ada").stdout
    listed = run("user", "list")

    assert "spent tonight   $1.50" in shown
    assert "$1.50 after reservations" in shown
    assert "4.00 by running tasks" in shown
    assert "$4.00" in listed.stdout
    assert "ada has limits that differ from the plan: 7 hours" in listed.stderr


@pytest.mark.parametrize("hours", ["-1", "1.5", "many"])
def test_a_wrong_number_is_refused_with_the_allowed_values(
    deployment: Deployment, hours: str
) -> None:
    deployment.user(name="ada")

    refused = run("user", "limits", "ada", f"--hours={hours}")

    assert refused.exit_code == Code.USAGE
    assert "a whole number from 0 or 'unlimited'" in refused.stderr


def test_slots_of_draining_workers_are_reported(deployment: Deployment) -> None:
    deployment.agent()
    deployment.running(deployment.user(name="ada"))
    deployment.run("UPDATE agents SET status = 'draining'")

    shown = run("queue-status", "--all-users").stdout

    assert "1 in use, 0 available" in shown
    assert "by user  ada 1" in shown


def test_a_deadline_that_has_passed_is_refused(deployment: Deployment) -> None:
    now = deployment.one("SELECT clock() AS now")["now"]

    with pytest.raises(InvalidRequest, match=r"deadline_at: .* has passed; legal: after"):
        deployment.task(deployment.user(), deadline_at=now - timedelta(minutes=1))


def test_the_fairness_report_of_a_new_deployment_counts_the_whole_queue(
    deployment: Deployment,
) -> None:
    deployment.agent()
    user = deployment.user(max_concurrent_agents=1)
    run_ = deployment.running(user)
    deployment.move_clock(timedelta(seconds=20))
    deployment.settle(run_, Returned())
    for _ in range(5):
        deployment.task(user)

    report = fairness(deployment.dispatcher, claim_settings=CLAIM_SETTINGS)

    assert report.users[0].waiting == 5
    assert report.users[0].service is not None
    assert report.jain is not None
    assert report.until_at - report.since_at < timedelta(minutes=5)
    assert not report.is_shortened


def test_the_error_for_a_key_without_admin_rights_names_the_missing_right(
    admin_cli: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin_cli.new_user(name="ada").take_commands(monkeypatch)

    for command in (("user", "list"), ("workers",), ("get", "x", "--all-users")):
        refused = run(*command)

        assert refused.exit_code == Code.FAILED
        assert refused.stderr.startswith("Error: This command needs the API key of an admin.\n")


def test_hours_are_charged_and_refunded(deployment: Deployment) -> None:
    deployment.user(name="ada", monthly_agent_hours_limit=10)

    charged = json.loads(run("user", "hours", "ada", "4", "--json").stdout)
    returned = json.loads(run("user", "hours", "--json", "ada", "--", "-1.5").stdout)

    assert charged["monthly_agent_hours_used"] == 4
    assert returned["monthly_agent_hours_used"] == 2.5


def test_fairness_prints_one_row_per_user(deployment: Deployment) -> None:
    deployment.agent()
    deployment.running(deployment.user(name="ada"))

    shown = run("fairness", "--since", "1h")
    document = json.loads(run("fairness", "--json").stdout)

    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.splitlines()[1].split()[:3] == ["ada", "1", "0"]
    assert "starving      nobody" in shown.stdout
    assert document["users"][0]["user"] == "ada"
    assert document["starts"] == 1


def test_fairness_of_an_idle_deployment_is_empty() -> None:
    shown = run("fairness")

    assert shown.exit_code == 0
    assert "No user had a ready task." in shown.stderr
