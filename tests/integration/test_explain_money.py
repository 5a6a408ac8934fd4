"""Explain: reasons from budgets."""

from overnight.models.explain import Reason
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.reasons import format_instant
from overnight_server.domain.results import StoppedByBudget
from overnight_server.explain.explain import explain
from tests.support.deployment import CLAIM_SETTINGS, Deployment


def only(deployment: Deployment, user: UserId, task: TaskId) -> Reason:
    [reason] = explain(deployment.app, user, task, CLAIM_SETTINGS).reasons
    return reason


def test_a_budget_that_cannot_pay_is_named(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(night_budget_usd=3)
    deployment.running(user, max_cost_usd=2.0)
    task = deployment.task(user, max_cost_usd=2.5)

    reason = only(deployment, user, task)

    begins = reason.details["next_night_at"]
    assert reason.code == "budget"
    assert reason.message == (
        "needs $2.50, and $1.00 is left of the night's budget: the next night begins at"
        f" {format_instant(begins)}, or ask an operator to raise it"
    )
    assert reason.details == {
        "budget": "night",
        "needs_usd": 2.5,
        "left_usd": 1.0,
        "limit_usd": 3.0,
        "next_night_at": begins,
    }
    assert begins > deployment.one("SELECT clock() AS now")["now"]


def test_a_task_more_expensive_than_a_whole_night_is_reported(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(night_budget_usd=1)
    task = deployment.task(user, max_cost_usd=2.5)

    assert only(deployment, user, task).message.startswith(
        "needs $2.50, more than the whole of the night's budget, $1.00: ask an operator"
    )


def test_a_night_budget_of_zero_is_reported(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user(night_budget_usd=0)
    task = deployment.task(user)

    assert only(deployment, user, task).message.startswith(
        "the night's budget is $0.00: it pays for nothing: ask an operator"
    )


def test_a_task_at_its_cost_limit_waits_for_approval(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    run = deployment.running(user, max_cost_usd=1.0)
    deployment.settle(run, StoppedByBudget(cost_usd=1.25))

    reason = only(deployment, user, run.claim.task_id)

    assert reason.code == "approval"
    assert reason.message.startswith(
        "it has cost $1.25 and reached its own cost limit: let it continue with"
        " `overnight approve`, or end it with `overnight stop`"
    )
    assert reason.details["cost_usd"] == 1.25
