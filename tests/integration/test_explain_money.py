"""Explain where money is what a task waits for."""

from app.domain.ids import TaskId, UserId
from app.domain.results import Suspended
from app.insight.explain import ReasonView, explain
from tests.support.house import TERMS, House


def only(house: House, user: UserId, task: TaskId) -> ReasonView:
    [reason] = explain(house.app, user, task, TERMS).reasons
    return reason


def test_a_budget_that_cannot_pay_is_named(house: House) -> None:
    house.agent()
    user = house.user(night_budget_usd=1)
    task = house.task(user, max_cost_usd=2.5)

    reason = only(house, user, task)

    assert reason.code == "budget"
    assert reason.message.startswith("needs $2.50, $1.00 left of the night's budget: ")
    assert reason.details["budget"] == "night"


def test_a_task_that_reached_its_ceiling_asks(house: House) -> None:
    house.agent()
    user = house.user()
    run = house.running(user, max_cost_usd=1.0)
    house.settle(run, Suspended(cost_usd=1.25))

    reason = only(house, user, run.claim.task_id)

    assert reason.code == "approval"
    assert reason.message.startswith("it has cost $1.25 and reached its own ceiling: ")
