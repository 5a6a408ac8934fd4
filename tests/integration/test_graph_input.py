"""A graph that could never end is refused whole, with the field named."""

from collections.abc import Callable

import pytest

from overnight.errors import InvalidRequest
from overnight_server.domain.ids import UserId
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import SubmittedDag, submit_dag, submit_graph
from overnight_server.store.db import Db
from tests.support.deployment import LOOSE, Deployment
from tests.support.rivals import Rival, held_lane, queue_up


def tasks(*titles: str) -> list[NewTask]:
    return [NewTask(title=title, type="echo") for title in titles]


def nothing_was_written(deployment: Deployment) -> bool:
    return deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 0


def test_a_cycle_is_refused_and_its_tasks_are_listed(deployment: Deployment) -> None:
    edges = [Edge(0, 1), Edge(1, 2), Edge(2, 1)]

    with pytest.raises(InvalidRequest, match=r"circular dependency: .*(b → c|c → b)"):
        submit_graph(deployment.app, deployment.user(), tasks("a", "b", "c"), LOOSE, edges=edges)

    assert nothing_was_written(deployment)


def test_an_edge_to_a_task_that_does_not_exist_is_refused(deployment: Deployment) -> None:
    with pytest.raises(InvalidRequest, match="refers to a task that does not exist"):
        submit_graph(deployment.app, deployment.user(), tasks("a", "b"), LOOSE, edges=[Edge(0, 2)])

    assert nothing_was_written(deployment)


def test_a_graph_beyond_its_cap_is_refused(deployment: Deployment) -> None:
    caps = Caps(max_pending_per_user=100, max_tasks_per_dag=2)

    with pytest.raises(InvalidRequest, match="at most 2"):
        submit_graph(
            deployment.app, deployment.user(), tasks("a", "b", "c"), caps, edges=[Edge(0, 1)]
        )

    assert nothing_was_written(deployment)


def test_concurrent_submits_with_one_key_make_one_graph(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    rivals = [Rival(connect, f"graph-{n}", _submit, user) for n in range(4)]

    with held_lane(connect, user):
        queue_up(connect, rivals)
    made = [rival.answer() for rival in rivals]

    assert len({submitted.dag_id for submitted in made}) == 1
    assert sorted(submitted.created for submitted in made) == [False, False, False, True]
    assert deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 2


def test_a_process_that_dies_before_the_commit_leaves_nothing(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    def die(point: str) -> None:
        if point == "intake.before_commit":
            raise Died

    monkeypatch.setattr("overnight_server.intake.submit.fault", die)

    with pytest.raises(Died):
        _submit(deployment.app, deployment.user())

    assert nothing_was_written(deployment)
    assert deployment.one("SELECT count(*) AS n FROM dags")["n"] == 0


def _submit(db: Db, user: UserId) -> SubmittedDag:
    return submit_dag(
        db, user, tasks("a", "b"), LOOSE, title="x", edges=[Edge(0, 1)], idempotency_key="once"
    )
