"""A task that waits for what it spawned: for its own children only, and within its ceiling."""

import pytest

from overnight import Task
from overnight_server.cli.terminal.task_output import standing
from overnight_server.control.budgets import approve
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import DagId, TaskId, UserId, new_task_id, show_task
from overnight_server.domain.results import Result, Returned, Waiting
from overnight_server.insight.dags import get_dag
from overnight_server.insight.tasks import get_task, list_tasks
from overnight_server.intake.grow_graph import Seed, SpawnCaps, spawn
from overnight_server.intake.submit import NewTask
from overnight_server.outcome.settle import settle_all
from tests.support.graphs import begin, end, sound
from tests.support.house import AGENT, LOOSE, House

ACTOR = "human:test"


@pytest.fixture
def user(house: House) -> UserId:
    house.agent()
    return house.user()


@pytest.fixture
def run(house: House, user: UserId) -> Run:
    return house.running(user, title="parent")


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


def test_a_child_that_is_named_twice_is_waited_for_once(house: House, run: Run) -> None:
    child = plant(house, run)

    assert house.settle(run, Waiting((child, child)))

    assert house.row(run.claim.task_id)["unmet"] == 1
    end(house, child, Returned())
    assert house.state(run.claim.task_id) == "ready"
    sound(house)


@pytest.mark.parametrize("whose", ["own", "another graph's", "another user's", "nobody's"])
def test_a_wait_for_a_task_it_did_not_spawn_fails_and_spoils_no_other_end(
    house: House, run: Run, whose: str
) -> None:
    mate = house.running(run.user_id)
    child = plant(house, run)
    stranger = {
        "own": run.claim.task_id,
        "another graph's": mate.claim.task_id,
        "another user's": house.task(house.user()),
        "nobody's": new_task_id(),
    }[whose]

    ends: list[tuple[Run, Result]] = [
        (run, Waiting((child, stranger), cost_usd=0.5)),
        (mate, Returned("fine")),
    ]
    settled = settle_all(house.dispatcher, ends, agent=AGENT)

    assert len(settled.won) == 2
    row = house.row(run.claim.task_id)
    assert (row["state"], row["failure_reason"]) == ("dead_lettered", "invalid_wait")
    assert show_task(stranger) in row["error"]
    assert not house.rows("SELECT * FROM task_edges")
    assert house.state(mate.claim.task_id) == "completed"
    sound(house)


def test_a_suspended_task_says_that_it_waits_for_its_children(house: House, run: Run) -> None:
    task = run.claim.task_id
    child = plant(house, run)
    house.settle(run, Waiting((child,)))

    shown = get_task(house.app, run.user_id, task)
    [listed] = [one for one in list_tasks(house.app, run.user_id, limit=5) if one.id == shown.id]
    drawn = get_dag(house.app, run.user_id, DagId(house.row(task)["dag_id"]))

    assert (shown.state, shown.wait_reason, listed.wait_reason) == ("pending", *["children"] * 2)
    assert [one.wait_reason for one in drawn.tasks] == ["children", None]
    assert standing(Task.model_validate(shown)) == "pending (waits for its children)"
    end(house, child, Returned())
    assert get_task(house.app, run.user_id, task).wait_reason is None
