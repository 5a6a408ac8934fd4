"""An edge is counted once, however often the end of its parent is recorded."""

from overnight_server.domain.results import Returned
from overnight_server.store.edges import resolve_dependents
from tests.support.deployment import Deployment
from tests.support.graphs import begin, graph


def test_a_parent_counted_twice_does_not_meet_another_edge(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    first, _, child = graph(deployment, user, 3, [(0, 2), (1, 2)])
    deployment.settle(*begin(deployment, first), Returned())

    deployment.dispatcher.atomically(lambda tx: resolve_dependents(tx, [first]))

    row = deployment.row(child)
    assert (row["state"], row["unmet"]) == ("pending", 1)
