"""A graph that could never end is refused whole, with the field named."""

import pytest

from app.domain.errors import InvalidRequest
from app.intake.submit import Caps, Edge, NewTask, submit_graph
from tests.support.house import LOOSE, House


def tasks(*titles: str) -> list[NewTask]:
    return [NewTask(title=title, type="echo") for title in titles]


def nothing_was_written(house: House) -> bool:
    return house.one("SELECT count(*) AS n FROM tasks")["n"] == 0


def test_a_circle_is_refused_and_named(house: House) -> None:
    edges = [Edge(0, 1), Edge(1, 2), Edge(2, 1)]

    with pytest.raises(InvalidRequest, match=r"circular dependency: .*(b → c|c → b)"):
        submit_graph(house.app, house.user(), tasks("a", "b", "c"), LOOSE, edges=edges)

    assert nothing_was_written(house)


def test_an_edge_to_nowhere_is_refused(house: House) -> None:
    with pytest.raises(InvalidRequest, match="names no task"):
        submit_graph(house.app, house.user(), tasks("a", "b"), LOOSE, edges=[Edge(0, 2)])

    assert nothing_was_written(house)


def test_a_graph_beyond_its_cap_is_refused(house: House) -> None:
    caps = Caps(max_pending_per_user=100, max_tasks_per_dag=2)

    with pytest.raises(InvalidRequest, match="at most 2"):
        submit_graph(house.app, house.user(), tasks("a", "b", "c"), caps, edges=[Edge(0, 1)])

    assert nothing_was_written(house)
