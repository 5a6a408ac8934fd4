"""An edge counts once, however often its parent is said to have ended."""

from overnight_server.domain.results import Returned
from overnight_server.store.edges import follow
from tests.support.graphs import begin, graph
from tests.support.house import House


def test_a_parent_counted_twice_does_not_stand_for_another(house: House) -> None:
    user = house.user()
    house.agent()
    first, _, child = graph(house, user, 3, [(0, 2), (1, 2)])
    house.settle(*begin(house, first), Returned())

    house.dispatcher.atomically(lambda tx: follow(tx, [first]))

    row = house.row(child)
    assert (row["state"], row["unmet"]) == ("pending", 1)
