"""Fork: a part of a graph runs again, the results of the rest are copied."""

import pytest

from overnight.errors import (
    InvalidRequest,
    TooManyPending,
)
from overnight_server.control.fork import fork
from overnight_server.control.retry import retry
from overnight_server.domain.graphs import Condition
from overnight_server.domain.ids import UserId, show_task
from overnight_server.domain.results import Raised, Returned
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_dag
from tests.support.deployment import LOOSE, Deployment
from tests.support.graphs import assert_invariants, end, linked, states, status

ME = "human:me"
FATAL = Raised("auth_failure", "wrong key")
FALLBACK, CLEAN_UP = Condition.FAILURE, Condition.FINISHED


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


def test_a_fork_runs_the_chosen_task_and_its_descendants_again(
    deployment: Deployment, user: UserId
) -> None:
    root, chosen, other, joined = linked(
        deployment, user, 4, Edge(0, 1), Edge(0, 2), Edge(1, 3), Edge(2, 3)
    )
    for task, output in ((root, "r"), (chosen, "c"), (other, "o"), (joined, "j")):
        end(deployment, task, Returned(output))
    before = [deployment.row(task_id) for task_id in (root, chosen, other, joined)]

    forked = fork(deployment.app, user, chosen, LOOSE, actor="human:ada", title="once more")

    copies = [forked.copies[task_id] for task_id in (root, chosen, other, joined)]
    assert states(deployment, *copies) == ["completed", "ready", "completed", "pending"]
    assert [deployment.row(copy)["output"] for copy in copies] == ["r", None, "o", None]
    assert [deployment.row(copy)["copied_from"] for copy in copies] == [root, None, other, None]
    assert forked.rerun == {copies[1], copies[3]}
    assert [deployment.row(task_id) for task_id in (root, chosen, other, joined)] == before
    dag = deployment.one("SELECT * FROM dags WHERE id = :id", id=forked.dag_id)
    assert (dag["title"], dag["status"], dag["completed"]) == ("once more", "running", 2)
    assert dag["forked_from"] == before[0]["dag_id"]
    end(deployment, copies[1], Returned())
    end(deployment, copies[3], Returned())
    assert status(deployment, copies[0]) == "completed"
    assert_invariants(deployment)


def test_a_fork_pays_nothing_for_copied_results(deployment: Deployment, user: UserId) -> None:
    root, child = linked(deployment, user, 2, Edge(0, 1))
    end(deployment, root, Returned(cost_usd=0.5))
    before = (deployment.lane(user)["used_seconds"], deployment.lane(user)["waiting"])

    forked = fork(deployment.app, user, child, LOOSE, actor=ME)

    row = deployment.row(forked.copies[root])
    assert (row["cost_usd"], row["epoch"], row["attempts"]) == (0, 0, 0)
    assert (deployment.lane(user)["used_seconds"], deployment.lane(user)["waiting"]) == (
        before[0],
        before[1] + 1,
    )
    assert_invariants(deployment)


def test_a_fork_omits_unneeded_tasks_and_runs_missing_ones(
    deployment: Deployment, user: UserId
) -> None:
    done, fallback, dead, joined, aside = linked(
        deployment, user, 5, Edge(0, 1, FALLBACK), Edge(0, 3), Edge(2, 3), Edge(2, 4, CLEAN_UP)
    )
    end(deployment, done, Returned())
    end(deployment, dead, FATAL)
    end(deployment, aside, Returned())

    forked = fork(deployment.app, user, joined, LOOSE, actor=ME)

    # The dead-lettered task must run before the chosen one; the unneeded fallback is not copied.
    assert set(forked.copies) == {done, dead, joined, aside}
    copies = [forked.copies[task_id] for task_id in (done, dead, joined, aside)]
    assert states(deployment, *copies) == ["completed", "ready", "pending", "completed"]
    again = fork(deployment.app, user, fallback, LOOSE, actor=ME)
    # Forked by name, it is still not needed.
    assert deployment.row(again.copies[fallback])["failure_reason"] == "not_needed"
    assert_invariants(deployment)


def test_a_fork_names_copies_where_specs_named_tasks(deployment: Deployment, user: UserId) -> None:
    root, child = linked(deployment, user, 2, Edge(0, 1))
    deployment.run(
        "UPDATE tasks SET spec = jsonb_build_object('context_refs',"
        " jsonb_build_array(CAST(:ref AS text), 'artifact:x')) WHERE id = :id",
        ref=f"task:{show_task(root)}:output",
        id=child,
    )
    end(deployment, root, Returned("seen"))

    forked = fork(deployment.app, user, root, LOOSE, actor=ME)

    spec = deployment.row(forked.copies[child])["spec"]
    assert spec["context_refs"] == [f"task:{show_task(forked.copies[root])}:output", "artifact:x"]


def test_a_fork_does_not_copy_children_of_a_task_that_runs_again(
    deployment: Deployment, user: UserId
) -> None:
    root, spawner, spawned = linked(deployment, user, 3, Edge(0, 1), Edge(2, 1))
    deployment.run(
        "UPDATE tasks SET parent_id = :p, spawn_key = 'a' WHERE id = :id", p=spawner, id=spawned
    )
    end(deployment, spawned, Returned())
    end(deployment, root, Returned())
    end(deployment, spawner, Returned())

    forked = fork(deployment.app, user, root, LOOSE, actor=ME)

    assert set(forked.copies) == {root, spawner}
    assert deployment.row(forked.copies[spawner])["unmet"] == 1
    with pytest.raises(InvalidRequest, match=f"{show_task(spawner)} spawned it"):
        fork(deployment.app, user, spawned, LOOSE, actor=ME)
    assert_invariants(deployment)


def test_a_lone_task_can_be_forked(deployment: Deployment, user: UserId) -> None:
    task = deployment.task(user)
    end(deployment, task, Returned())

    forked = fork(deployment.app, user, task, LOOSE, actor=ME)

    assert states(deployment, task, forked.copies[task]) == ["completed", "ready"]
    assert_invariants(deployment)


def test_a_fork_that_exceeds_a_cap_leaves_nothing_behind(
    deployment: Deployment, user: UserId
) -> None:
    root, *_ = linked(deployment, user, 3, Edge(0, 1), Edge(1, 2))
    before = deployment.one("SELECT count(*) AS n FROM tasks")["n"]

    with pytest.raises(TooManyPending):
        fork(deployment.app, user, root, Caps(max_pending_per_user=5), actor=ME)
    with pytest.raises(InvalidRequest, match="at most 2"):
        fork(deployment.app, user, root, Caps(100, max_tasks_per_dag=2), actor=ME)

    assert deployment.one("SELECT count(*) AS n FROM tasks")["n"] == before
    assert deployment.one("SELECT count(*) AS n FROM dags")["n"] == 1


def test_a_repeated_fork_key_reports_the_original_source(
    deployment: Deployment, user: UserId
) -> None:
    [first] = linked(deployment, user, 1)
    [second] = linked(deployment, user, 1)
    made = fork(deployment.app, user, first, LOOSE, actor=ME, idempotency_key="once")

    again = fork(deployment.app, user, second, LOOSE, actor=ME, idempotency_key="once")

    assert (again.dag_id, again.created) == (made.dag_id, False)
    assert again.forked_from == made.forked_from == deployment.row(first)["dag_id"]


def test_a_fork_under_the_key_of_a_create_is_refused(deployment: Deployment, user: UserId) -> None:
    tasks = [NewTask("only", "echo")]
    dag = submit_dag(deployment.app, user, tasks, LOOSE, title="a graph", idempotency_key="once")

    with pytest.raises(InvalidRequest, match="was created under it"):
        fork(deployment.app, user, dag.tasks[0], LOOSE, actor=ME, idempotency_key="once")

    assert deployment.one("SELECT count(*) AS n FROM dags")["n"] == 1


def test_a_fork_has_the_requested_maximum_of_attempts(deployment: Deployment, user: UserId) -> None:
    task = deployment.task(user, max_attempts=2)
    for _ in range(2):
        end(deployment, task, FATAL)
        retry(deployment.app, user, task, actor=ME)
    assert deployment.row(task)["max_attempts"] > 2

    forked = fork(deployment.app, user, task, LOOSE, actor=ME)

    assert deployment.row(forked.copies[task])["max_attempts"] == 2
    assert_invariants(deployment)
