"""Explain: reasons from a task's edges."""

from overnight.models.explain import Reason
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.results import Returned
from overnight_server.explain.explain import explain
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from tests.support.deployment import CLAIM_SETTINGS, LOOSE, Deployment
from tests.support.graphs import begin


def test_a_dependency_reports_how_each_parent_must_end(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    tasks = [NewTask(title="t", type="echo") for _ in range(4)]
    edges = [Edge(0, 3, "failure"), Edge(1, 3, "finished"), Edge(2, 3, on_unmet="continue")]
    made = [
        submitted.task_id
        for submitted in submit_graph(deployment.app, user, tasks, LOOSE, edges=edges)
    ]

    reason = _only(deployment, user, made[3])

    first, second, third = (show_task(task_id) for task_id in made[:3])
    assert reason.message == (
        f"it waits for 3 other tasks: {first} (ready) to fail, {second} (ready) to end and"
        f" {third} (ready) to end"
    )
    assert [task["condition"] for task in reason.details["tasks"]] == [
        "failure",
        "finished",
        "success",
    ]
    assert [task["on_unmet"] for task in reason.details["tasks"]][2] == "continue"


def test_a_task_cancelled_because_of_a_parent_names_that_parent(
    deployment: Deployment,
) -> None:
    deployment.agent()
    user = deployment.user()
    tasks = [NewTask(title="t", type="echo") for _ in range(3)]
    edges = [Edge(0, 1, "failure"), Edge(2, 1)]
    done, fallback, _ = (
        submitted.task_id
        for submitted in submit_graph(deployment.app, user, tasks, LOOSE, edges=edges)
    )
    deployment.settle(*begin(deployment, done), Returned())

    reason = _only(deployment, user, fallback)

    assert f"it waited for {show_task(done)} (completed) to fail" in reason.message
    assert reason.message.endswith("not needed")
    assert [task["id"] for task in reason.details["tasks"]] == [show_task(done)]


def _only(deployment: Deployment, user: UserId, task: TaskId) -> Reason:
    [reason] = explain(deployment.app, user, task, CLAIM_SETTINGS).reasons
    return reason
