"""The commands for budgets and approvals, through the admin API."""

import json

import pytest

from overnight_server.cli.terminal.failures import Code
from overnight_server.control.adjust_hours import adjust_hours
from overnight_server.domain.ids import UserId, show_dag, show_task
from overnight_server.domain.results import StoppedByBudget
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit_graph
from tests.support.api_user import ApiUser
from tests.support.command import run
from tests.support.deployment import AGENT, LOOSE, Deployment

pytestmark = pytest.mark.usefixtures("admin_cli")


@pytest.fixture
def ada(deployment: Deployment) -> UserId:
    return deployment.user(name="ada")


@pytest.fixture
def asking(deployment: Deployment, ada: UserId) -> str:
    """The shown id of a task that has used up its ceiling."""
    deployment.agent()
    dear = deployment.running(ada, title="dear", max_cost_usd=1.0)
    deployment.settle(dear, StoppedByBudget("the task has cost $1.25 of its $1.00", cost_usd=1.25))
    return show_task(dear.claim.task_id)


def test_tasks_over_budget_are_listed(deployment: Deployment, asking: str) -> None:
    deployment.user(name="bob")

    listed = run("approvals", "list", "--all-users")
    [approval] = json.loads(run("approvals", "list", "--user", "ada", "--json").stdout)

    assert listed.exit_code == 0, listed.stderr
    assert "$1.25" in listed.stdout
    assert (approval["task_id"], approval["budget"], approval["limit_usd"]) == (asking, "task", 1.0)
    assert json.loads(run("approvals", "list", "--user", "bob", "--json").stdout) == []
    assert "No task waits for a higher budget." in run("approvals", "list", "--user", "bob").stderr


def test_an_approval_records_the_admin_who_gave_it(
    deployment: Deployment, asking: str, admin_cli: ApiUser
) -> None:
    answer = json.loads(
        run("approve", asking[-6:], "--all-users", "--usd", "2.50", "--json").stdout
    )

    assert answer == {
        "task_id": asking,
        "approved_usd": 2.5,
        "budget": "task",
        "resumed": 1,
    }
    [event] = deployment.rows("SELECT actor, to_state FROM events WHERE from_state = 'pending'")
    assert event["to_state"] == "ready"
    assert event["actor"] == f"user:{admin_cli.user}"
    again = run("approve", asking, "--all-users", "--usd", "1")
    assert again.exit_code == Code.FAILED
    assert "waits for no budget approval; it is ready" in again.stderr


def test_a_stop_cancels_the_task(deployment: Deployment, asking: str, admin_cli: ApiUser) -> None:
    answer = run("stop", asking, "--all-users")

    assert answer.stdout == f"{asking} cancelled\n"
    [event] = deployment.rows("SELECT reason, actor FROM events WHERE to_state = 'cancelled'")
    assert event["reason"] == "budget_exceeded"
    assert event["actor"] == f"user:{admin_cli.user}"


def test_an_invalid_amount_is_refused(asking: str) -> None:
    assert run("approve", asking, "--all-users", "--usd", "0").exit_code == Code.USAGE
    assert run("approve", asking, "--all-users", "--usd", "lots").exit_code == Code.USAGE
    assert run("approve", asking, "--all-users", "--usd", "nan").exit_code == Code.USAGE
    assert run("approve", asking, "--all-users", "--usd", "1000000").exit_code == Code.USAGE
    assert run("budget", "user", "ada", "--usd", "lots").exit_code == Code.USAGE
    assert run("budget", "user", "ada", "--usd", "-1").exit_code == Code.USAGE
    assert run("budget", "dag", "dag_1", "--usd", "1").exit_code == Code.FAILED
    assert run("stop", "task_nonsense", "--all-users").exit_code != 0


def test_the_largest_amount_fits_beside_what_was_spent(asking: str) -> None:
    assert run("approve", asking, "--all-users", "--usd", "999999").exit_code == Code.OK


def test_budgets_of_a_night_a_graph_and_an_agent_are_set(
    deployment: Deployment, ada: UserId
) -> None:
    deployment.agent()
    [one, _] = submit_graph(
        deployment.app, ada, [NewTask("a", "echo"), NewTask("b", "echo")], LOOSE, title="both"
    )
    dag = show_dag(one.dag_id)

    night = run("budget", "user", "ada", "--usd", "20", "--json")
    graph = run("budget", "dag", dag, "--usd", "5")
    agent = run("budget", "agent", AGENT, "--usd", "7.5")

    assert json.loads(night.stdout) == {"user": "ada", "night_budget_usd": 20.0}
    assert graph.stdout == f"Budget of {dag}: $5.00\n"
    assert agent.stdout == f"Budget of {AGENT}: $7.50\n"
    assert deployment.lane(ada)["night_limit_usd"] == 20
    assert run("budget", "user", "ada", "--usd", "none").stdout == "Night budget of ada: no limit\n"
    assert deployment.lane(ada)["night_limit_usd"] is None
    assert run("budget", "agent", "nobody", "--usd", "1").exit_code == Code.FAILED
    missing = run("budget", "dag", show_dag(UserId(ada)), "--usd", "1")
    assert "no such graph" in missing.stderr


def test_the_rule_for_exhausted_hours_is_set_and_shown(deployment: Deployment, ada: UserId) -> None:
    shown = run("user", "limits", "ada", "--on-exhausted", "hold", "--json")

    assert json.loads(shown.stdout)["on_exhausted"] == "hold"
    assert "new tasks wait" in run("user", "limits", "ada").stdout
    run("user", "limits", "ada", "--template")
    assert "refused" in run("user", "limits", "ada").stdout


def test_notices_are_listed(deployment: Deployment) -> None:
    user = deployment.user(name="cyd", monthly_agent_hours_limit=10)
    adjust_hours(deployment.app, user, 8, note="test")

    listed = json.loads(run("user", "notices", "cyd", "--json").stdout)

    assert [item["kind"] for item in listed] == ["usage.80", "usage.50"]
    assert "usage.80" in run("user", "notices", "cyd").stdout
