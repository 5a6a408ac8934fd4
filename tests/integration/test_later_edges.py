"""Edges added between tasks that exist: never a circle, never lost, never stuck."""

from collections.abc import Callable

import pytest

from overnight_server.domain.errors import InvalidRequest, TaskNotFound
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.results import Returned, Suspended
from overnight_server.intake.grow_graph import NewEdge, add_edges
from overnight_server.intake.submit import NewTask, submit_graph
from overnight_server.outcome.settle import settle
from overnight_server.store.db import Db
from tests.support.graphs import begin, graph
from tests.support.house import AGENT, LOOSE, House
from tests.support.invariants import told, violations
from tests.support.rivals import Rival, meet_at_lane

ACTOR = "human:test"


@pytest.fixture
def user(house: House) -> UserId:
    house.agent()
    return house.user()


def add(db: Db, user: UserId, *pairs: tuple[TaskId, TaskId]) -> None:
    add_edges(db, user, [NewEdge(*pair) for pair in pairs], actor=ACTOR)


def sound(house: House) -> None:
    found = violations(house.owner)
    assert not found, told(found)


def test_a_later_edge_holds_its_child_back(house: House, user: UserId) -> None:
    root, left, right = graph(house, user, 3, [(0, 1), (0, 2)])

    add(house.app, user, (left, right))
    [run] = begin(house, root)
    house.settle(run, Returned())

    assert [house.state(one) for one in (left, right)] == ["ready", "pending"]
    assert house.row(left)["dependency_boost"] > house.row(right)["dependency_boost"]
    [run] = begin(house, left)
    house.settle(run, Returned())
    assert house.state(right) == "ready"
    sound(house)


def test_a_parent_that_has_completed_counts_at_once(house: House, user: UserId) -> None:
    root, _, child = graph(house, user, 3, [(1, 2)])
    [run] = begin(house, root)
    house.settle(run, Returned())

    add(house.app, user, (root, child))

    assert house.row(child)["unmet"] == 1
    sound(house)


def test_the_same_edge_again_changes_nothing(house: House, user: UserId) -> None:
    root, child = graph(house, user, 2, [(0, 1)])

    add(house.app, user, (root, child))

    assert house.row(child)["unmet"] == 1


def test_a_circle_is_refused_and_named(house: House, user: UserId) -> None:
    _, b, c = graph(house, user, 3, [(0, 1), (1, 2)])

    with pytest.raises(InvalidRequest, match="circular dependency: task 2 → task 1 → task 2"):
        add(house.app, user, (c, b))

    assert len(house.rows("SELECT * FROM task_edges")) == 2


def test_a_circle_within_one_request_is_refused_whole(house: House, user: UserId) -> None:
    _, b, c = graph(house, user, 3, [(0, 1), (0, 2)])

    with pytest.raises(InvalidRequest, match="circular"):
        add(house.app, user, (b, c), (c, b))

    assert len(house.rows("SELECT * FROM task_edges")) == 2
    sound(house)


def test_two_edges_added_at_once_cannot_close_a_circle(
    house: House, user: UserId, connect: Callable[..., Db]
) -> None:
    _, b, c = graph(house, user, 3, [(0, 1), (0, 2)])
    there = Rival(connect, "there", add, user, (b, c))
    back = Rival(connect, "back", add, user, (c, b))

    with pytest.raises(InvalidRequest, match="circular dependency: task 2 → task 1 → task 2"):
        meet_at_lane(connect, user, there, back)

    assert house.row(c)["unmet"] == 2
    assert house.row(b)["unmet"] == 1
    sound(house)


@pytest.mark.parametrize("first", ["edge", "parent"])
def test_an_edge_added_while_its_parent_completes_is_neither_lost_nor_stuck(
    house: House, user: UserId, connect: Callable[..., Db], first: str
) -> None:
    parent, other, child = graph(house, user, 3, [(1, 2)])
    [run] = begin(house, parent)
    rivals = {
        "edge": Rival(connect, "edge", add, user, (parent, child)),
        "parent": Rival(connect, "parent", settle, run, Returned(), agent=AGENT),
    }

    meet_at_lane(connect, user, *(rivals[name] for name in sorted(rivals, key=first.__ne__)))

    assert house.row(child)["unmet"] == 1
    [run] = begin(house, other)
    house.settle(run, Returned())
    assert house.state(child) == "ready"
    sound(house)


def test_what_is_no_longer_pending_cannot_be_made_to_wait(house: House, user: UserId) -> None:
    a, b = graph(house, user, 2, [])

    with pytest.raises(InvalidRequest, match="is ready, and can no longer be made to wait"):
        add(house.app, user, (a, b))


def test_what_asks_for_money_cannot_be_made_to_wait(house: House, user: UserId) -> None:
    tasks = [NewTask("dear", "echo", max_cost_usd=1.0), NewTask("other", "echo")]
    made = submit_graph(house.app, user, tasks, LOOSE, title="a graph")
    dear, other = (one.task_id for one in made)
    [run] = begin(house, dear)
    house.settle(run, Suspended(cost_usd=1.2))

    with pytest.raises(InvalidRequest, match="asks for more money, and cannot be made to wait"):
        add(house.app, user, (other, dear))

    sound(house)


def test_a_parent_that_never_ends_so_is_refused(house: House, user: UserId) -> None:
    done, _, child = graph(house, user, 3, [(1, 2)])
    [run] = begin(house, done)
    house.settle(run, Returned())

    with pytest.raises(InvalidRequest, match="its failure never comes"):
        add_edges(house.app, user, [NewEdge(done, child, "failure")], actor=ACTOR)


def test_an_edge_stays_within_one_graph_of_one_user(house: House, user: UserId) -> None:
    _, child = graph(house, user, 2, [(0, 1)])

    with pytest.raises(InvalidRequest, match="another graph"):
        add(house.app, user, (house.task(user), child))
    with pytest.raises(TaskNotFound):
        add(house.app, user, (house.task(house.user()), child))
