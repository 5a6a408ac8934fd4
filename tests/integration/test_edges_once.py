"""An edge counts once, however often its parent is said to have completed."""

from app.outcome.settle import unblock
from tests.support.graphs import graph
from tests.support.house import House


def test_a_parent_counted_twice_does_not_stand_for_another(house: House) -> None:
    first, _, child = graph(house, house.user(), 3, [(0, 2), (1, 2)])

    house.dispatcher.atomically(lambda tx: unblock(tx, [first]))
    house.dispatcher.atomically(lambda tx: unblock(tx, [first]))

    row = house.row(child)
    assert (row["state"], row["unmet"]) == ("pending", 1)
