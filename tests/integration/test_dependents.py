"""Dependents of an ended task become ready once or are cancelled; the graph is counted."""

from collections.abc import Callable

from overnight_server.domain.ids import TaskId
from overnight_server.domain.results import Raised, Returned, StoppedByCancel
from overnight_server.outcome.settle import settle
from overnight_server.store.db import Db
from tests.support.deployment import AGENT, Deployment
from tests.support.graphs import begin, graph
from tests.support.rivals import Rival, meet_at_lane

FATAL = Raised("auth_failure", "wrong key")


def test_a_completed_parent_makes_its_child_ready(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    parent, child = graph(deployment, user, 2, [(0, 1)])

    [run] = begin(deployment, parent)
    deployment.settle(run, Returned())

    row = deployment.row(child)
    assert (row["state"], row["unmet"]) == ("ready", 0)
    assert deployment.one("SELECT status FROM dags")["status"] == "running"


def test_two_parents_that_finish_together_release_their_child_once(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    deployment.agent()
    left, right, child = graph(deployment, user, 3, [(0, 2), (1, 2)])
    runs = begin(deployment, left, right)

    won = meet_at_lane(
        connect,
        user,
        *(
            Rival(connect, f"parent-{n}", settle, run, Returned(), agent=AGENT)
            for n, run in enumerate(runs)
        ),
    )

    assert won == [True, True]
    row = deployment.row(child)
    assert (row["state"], row["unmet"]) == ("ready", 0)
    assert _moves(deployment, child) == [(None, "pending"), ("pending", "ready")]
    assert deployment.lane(user)["ready"] == 1


def test_a_fan_in_task_starts_after_all_parents(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    width = 20
    edges = [(0, n) for n in range(1, width + 1)] + [(n, width + 1) for n in range(1, width + 1)]
    root, *middle, last = graph(deployment, user, width + 2, edges)
    [run] = begin(deployment, root)
    deployment.settle(run, Returned())

    while claims := deployment.claim().claims:
        for claimed in claims:
            middle_run = deployment.start(claimed)
            assert middle_run is not None
            deployment.settle(middle_run, Returned())

    assert {deployment.state(task_id) for task_id in (*middle, last)} == {"completed"}
    dag = deployment.one("SELECT * FROM dags")
    assert (dag["status"], dag["completed"]) == ("completed", width + 2)
    assert dag["finished_at"] is not None


def test_a_dead_lettered_parent_cancels_all_its_dependents(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    root, child, grandchild, unrelated = graph(deployment, user, 4, [(0, 1), (1, 2)])

    [run] = begin(deployment, root)
    deployment.settle(run, FATAL)

    below = [deployment.row(task_id) for task_id in (child, grandchild)]
    assert [row["state"] for row in below] == ["cancelled", "cancelled"]
    assert {row["failure_reason"] for row in below} == {"upstream_failed"}
    assert deployment.state(unrelated) == "ready"
    assert deployment.lane(user)["waiting"] == 1
    [run] = begin(deployment, unrelated)
    deployment.settle(run, Returned())
    dag = deployment.one("SELECT * FROM dags")
    assert (dag["status"], dag["dead"], dag["cancelled"]) == ("failed", 1, 2)


def test_a_stopped_parent_cancels_its_dependents(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    root, child = graph(deployment, user, 2, [(0, 1)])

    [run] = begin(deployment, root)
    deployment.settle(run, StoppedByCancel())

    assert deployment.row(child)["failure_reason"] == "upstream_cancelled"
    assert deployment.one("SELECT status FROM dags")["status"] == "cancelled"


def _moves(deployment: Deployment, task_id: TaskId) -> list[tuple[str | None, str]]:
    events = deployment.rows("SELECT * FROM events WHERE task_id = :id ORDER BY seq", id=task_id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    return [(event["from_state"], event["to_state"]) for event in events]
