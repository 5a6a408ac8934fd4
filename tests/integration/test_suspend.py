"""A suspended task waits only for its own children and within its cost limit."""

import pytest

from overnight import Task
from overnight_server.cli.terminal.task_output import state_text
from overnight_server.control.budgets import approve
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import DagId, TaskId, UserId, new_task_id, show_task
from overnight_server.domain.results import Result, Returned, WaitingForTasks
from overnight_server.insight.dags import get_dag
from overnight_server.insight.tasks import get_task, list_tasks
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.spawn import NewChild, SpawnCaps, spawn
from overnight_server.outcome.settle import settle_all
from tests.support.deployment import AGENT, LOOSE, Deployment
from tests.support.graphs import assert_invariants, begin, end

ACTOR = "human:test"


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def run(deployment: Deployment, user: UserId) -> Run:
    return deployment.running(user, title="parent")


def spawn_child(deployment: Deployment, run: Run) -> TaskId:
    seed = NewChild(NewTask("child", "echo"), "#1")
    return spawn(deployment.dispatcher, run.user_id, run.claim, seed, SpawnCaps(LOOSE)).task_id


@pytest.mark.parametrize("over", ["before", "after"])
def test_a_suspended_task_at_its_cost_limit_waits_for_approval(
    deployment: Deployment, user: UserId, over: str
) -> None:
    run = deployment.running(user, max_cost_usd=1.0)
    task = run.claim.task_id
    child = spawn_child(deployment, run)
    if over == "before":
        end(deployment, child, Returned())

    deployment.settle(run, WaitingForTasks((child,), cost_usd=1.2))

    if over == "after":
        assert deployment.row(task)["awaits_budget"] is None
        end(deployment, child, Returned())
    row = deployment.row(task)
    assert (row["state"], row["unmet"], row["awaits_budget"]) == ("pending", 0, "task")
    assert not deployment.claim().claims
    assert_invariants(deployment)
    approve(deployment.app, task, 1.0, actor=ACTOR)
    [again] = begin(deployment, task)
    deployment.settle(again, Returned("done"))
    assert_invariants(deployment)


def test_a_child_that_is_named_twice_is_waited_for_once(deployment: Deployment, run: Run) -> None:
    child = spawn_child(deployment, run)

    assert deployment.settle(run, WaitingForTasks((child, child)))

    assert deployment.row(run.claim.task_id)["unmet"] == 1
    end(deployment, child, Returned())
    assert deployment.state(run.claim.task_id) == "ready"
    assert_invariants(deployment)


@pytest.mark.parametrize("owner", ["own", "another graph's", "another user's", "nobody's"])
def test_a_wait_for_a_foreign_task_fails_only_its_own_run(
    deployment: Deployment, run: Run, owner: str
) -> None:
    mate = deployment.running(run.user_id)
    child = spawn_child(deployment, run)
    unrelated_task = {
        "own": run.claim.task_id,
        "another graph's": mate.claim.task_id,
        "another user's": deployment.task(deployment.user()),
        "nobody's": new_task_id(),
    }[owner]

    ends: list[tuple[Run, Result]] = [
        (run, WaitingForTasks((child, unrelated_task), cost_usd=0.5)),
        (mate, Returned("fine")),
    ]
    settled = settle_all(deployment.dispatcher, ends, agent=AGENT)

    assert len(settled.won) == 2
    row = deployment.row(run.claim.task_id)
    assert (row["state"], row["failure_reason"]) == ("dead_lettered", "invalid_wait")
    assert show_task(unrelated_task) in row["error"]
    assert not deployment.rows("SELECT * FROM task_edges")
    assert deployment.state(mate.claim.task_id) == "completed"
    assert_invariants(deployment)


def test_a_suspended_task_is_shown_as_waiting_for_its_subtasks(
    deployment: Deployment, run: Run
) -> None:
    task = run.claim.task_id
    child = spawn_child(deployment, run)
    deployment.settle(run, WaitingForTasks((child,)))

    shown = get_task(deployment.app, run.user_id, task)
    [listed] = [
        task for task in list_tasks(deployment.app, run.user_id, limit=5) if task.id == shown.id
    ]
    drawn = get_dag(deployment.app, run.user_id, DagId(deployment.row(task)["dag_id"]))

    assert (shown.state, shown.wait_reason, listed.wait_reason) == ("pending", *["children"] * 2)
    assert [task.wait_reason for task in drawn.tasks] == ["children", None]
    assert state_text(Task.model_validate(shown)) == "pending (waits for its subtasks)"
    end(deployment, child, Returned())
    assert get_task(deployment.app, run.user_id, task).wait_reason is None
