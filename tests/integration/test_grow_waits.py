"""A task that waits for what it spawned: within its ceiling."""

import pytest

from app.control.budgets import approve
from app.domain.claims import Run
from app.domain.ids import TaskId, UserId
from app.domain.results import Returned, Waiting
from app.intake.grow import Seed, SpawnCaps, spawn
from app.intake.submit import NewTask
from tests.support.graphs import begin, end, sound
from tests.support.house import LOOSE, House

ACTOR = "human:test"


@pytest.fixture
def user(house: House) -> UserId:
    house.agent()
    return house.user()


def plant(house: House, run: Run) -> TaskId:
    seed = Seed(NewTask("child", "echo"), "#1")
    return spawn(house.dispatcher, run.user_id, run.claim, seed, SpawnCaps(LOOSE)).task_id


@pytest.mark.parametrize("over", ["before", "after"])
def test_a_suspended_task_that_has_spent_all_it_may_asks_before_it_goes_on(
    house: House, user: UserId, over: str
) -> None:
    run = house.running(user, max_cost_usd=1.0)
    task = run.claim.task_id
    child = plant(house, run)
    if over == "before":
        end(house, child, Returned())

    house.settle(run, Waiting((child,), cost_usd=1.2))

    if over == "after":
        assert house.row(task)["awaits_budget"] is None
        end(house, child, Returned())
    row = house.row(task)
    assert (row["state"], row["unmet"], row["awaits_budget"]) == ("pending", 0, "task")
    assert not house.claim().claims
    sound(house)
    approve(house.app, task, 1.0, actor=ACTOR)
    [again] = begin(house, task)
    house.settle(again, Returned("done"))
    sound(house)
