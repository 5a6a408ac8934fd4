"""Edges added between tasks that exist: never a circle, never lost, never stuck."""

from collections.abc import Callable

import pytest

from overnight.errors import InvalidRequest, TaskNotFound
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.results import Returned, StoppedByBudget
from overnight_server.intake.add_edges import NewEdge, add_edges
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.outcome.settle import settle
from overnight_server.store.db import Db
from tests.support.deployment import AGENT, LOOSE, Deployment
from tests.support.graphs import begin, graph
from tests.support.invariants import describe_violations, violations
from tests.support.rivals import Rival, meet_at_lane

ACTOR = "human:test"


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


def add(db: Db, user: UserId, *pairs: tuple[TaskId, TaskId]) -> None:
    add_edges(db, user, [NewEdge(*pair) for pair in pairs], actor=ACTOR)


def assert_no_violations(deployment: Deployment) -> None:
    broken = violations(deployment.owner)
    assert not broken, describe_violations(broken)


def test_an_added_edge_makes_its_child_wait(deployment: Deployment, user: UserId) -> None:
    root, left, right = graph(deployment, user, 3, [(0, 1), (0, 2)])

    add(deployment.app, user, (left, right))
    [run] = begin(deployment, root)
    deployment.settle(run, Returned())

    assert [deployment.state(task_id) for task_id in (left, right)] == ["ready", "pending"]
    assert deployment.row(left)["dependency_boost"] > deployment.row(right)["dependency_boost"]
    [run] = begin(deployment, left)
    deployment.settle(run, Returned())
    assert deployment.state(right) == "ready"
    assert_no_violations(deployment)


def test_an_added_edge_from_a_completed_parent_is_met_at_once(
    deployment: Deployment, user: UserId
) -> None:
    root, _, child = graph(deployment, user, 3, [(1, 2)])
    [run] = begin(deployment, root)
    deployment.settle(run, Returned())

    add(deployment.app, user, (root, child))

    assert deployment.row(child)["unmet"] == 1
    assert_no_violations(deployment)


def test_adding_the_same_edge_twice_changes_nothing(deployment: Deployment, user: UserId) -> None:
    root, child = graph(deployment, user, 2, [(0, 1)])

    add(deployment.app, user, (root, child))

    assert deployment.row(child)["unmet"] == 1


def test_a_cycle_is_refused_and_its_tasks_are_listed(deployment: Deployment, user: UserId) -> None:
    _, b, c = graph(deployment, user, 3, [(0, 1), (1, 2)])

    with pytest.raises(InvalidRequest, match="circular dependency: task 2 → task 1 → task 2"):
        add(deployment.app, user, (c, b))

    assert len(deployment.rows("SELECT * FROM task_edges")) == 2


def test_a_cycle_within_one_request_is_refused_whole(deployment: Deployment, user: UserId) -> None:
    _, b, c = graph(deployment, user, 3, [(0, 1), (0, 2)])

    with pytest.raises(InvalidRequest, match="circular"):
        add(deployment.app, user, (b, c), (c, b))

    assert len(deployment.rows("SELECT * FROM task_edges")) == 2
    assert_no_violations(deployment)


def test_two_edges_added_at_once_cannot_close_a_cycle(
    deployment: Deployment, user: UserId, connect: Callable[..., Db]
) -> None:
    _, b, c = graph(deployment, user, 3, [(0, 1), (0, 2)])
    there = Rival(connect, "there", add, user, (b, c))
    back = Rival(connect, "back", add, user, (c, b))

    with pytest.raises(InvalidRequest, match="circular dependency: task 2 → task 1 → task 2"):
        meet_at_lane(connect, user, there, back)

    assert deployment.row(c)["unmet"] == 2
    assert deployment.row(b)["unmet"] == 1
    assert_no_violations(deployment)


@pytest.mark.parametrize("first", ["edge", "parent"])
def test_an_edge_added_while_its_parent_completes_is_met(
    deployment: Deployment, user: UserId, connect: Callable[..., Db], first: str
) -> None:
    parent, other, child = graph(deployment, user, 3, [(1, 2)])
    [run] = begin(deployment, parent)
    rivals = {
        "edge": Rival(connect, "edge", add, user, (parent, child)),
        "parent": Rival(connect, "parent", settle, run, Returned(), agent=AGENT),
    }

    meet_at_lane(connect, user, *(rivals[name] for name in sorted(rivals, key=first.__ne__)))

    assert deployment.row(child)["unmet"] == 1
    [run] = begin(deployment, other)
    deployment.settle(run, Returned())
    assert deployment.state(child) == "ready"
    assert_no_violations(deployment)


def test_a_task_that_is_not_pending_gets_no_new_edge(deployment: Deployment, user: UserId) -> None:
    a, b = graph(deployment, user, 2, [])

    with pytest.raises(InvalidRequest, match="is ready: it can no longer wait"):
        add(deployment.app, user, (a, b))


def test_a_task_that_waits_for_a_budget_gets_no_new_edge(
    deployment: Deployment, user: UserId
) -> None:
    tasks = [NewTask("dear", "echo", max_cost_usd=1.0), NewTask("other", "echo")]
    made = submit_graph(deployment.app, user, tasks, LOOSE, title="a graph")
    dear, other = (submitted.task_id for submitted in made)
    [run] = begin(deployment, dear)
    deployment.settle(run, StoppedByBudget(cost_usd=1.2))

    with pytest.raises(InvalidRequest, match="waits for the approval of its budget"):
        add(deployment.app, user, (other, dear))

    assert_no_violations(deployment)


def test_an_edge_that_can_never_be_met_is_refused(deployment: Deployment, user: UserId) -> None:
    done, _, child = graph(deployment, user, 3, [(1, 2)])
    [run] = begin(deployment, done)
    deployment.settle(run, Returned())

    with pytest.raises(InvalidRequest, match="can never be met"):
        add_edges(deployment.app, user, [NewEdge(done, child, "failure")], actor=ACTOR)


def test_an_edge_stays_within_one_graph_of_one_user(deployment: Deployment, user: UserId) -> None:
    _, child = graph(deployment, user, 2, [(0, 1)])

    with pytest.raises(InvalidRequest, match="another graph"):
        add(deployment.app, user, (deployment.task(user), child))
    with pytest.raises(TaskNotFound):
        add(deployment.app, user, (deployment.task(deployment.user()), child))
