"""Helpers for tests of graphs: submit small graphs and run chosen tasks of them."""

from collections.abc import Sequence

from overnight_server.domain.claims import Run
from overnight_server.domain.ids import DagId, TaskId, UserId
from overnight_server.domain.results import Result
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.outcome.settle import release
from tests.support.deployment import AGENT, LOOSE, Deployment
from tests.support.invariants import describe_violations, violations


def graph(
    deployment: Deployment, user: UserId, size: int, edges: Sequence[tuple[int, int]]
) -> list[TaskId]:
    """Submit `size` tasks as one graph; an edge names the positions of parent and child."""
    return linked(deployment, user, size, *(Edge(*edge) for edge in edges))


def begin(deployment: Deployment, *task_ids: TaskId, agent: str = AGENT) -> list[Run]:
    """Claim and start these ready tasks; release all other claims."""
    claims = {claimed.claim.task_id: claimed for claimed in deployment.claim().claims}
    chosen = [claims.pop(task_id) for task_id in task_ids]
    release(deployment.dispatcher, list(claims.values()), reason="test")
    runs = [deployment.start(claimed, agent) for claimed in chosen]
    return [run for run in runs if run is not None]


def linked(deployment: Deployment, user: UserId, size: int, *edges: Edge) -> list[TaskId]:
    """Submit `size` tasks as one graph with these edges."""
    tasks = [NewTask(f"task {number}", "echo") for number in range(size)]
    created = submit_graph(deployment.app, user, tasks, LOOSE, edges=edges, title="a graph")
    return [submitted.task_id for submitted in created]


def end(deployment: Deployment, task: TaskId, result: Result) -> None:
    """Run one ready task and settle it with this result."""
    [run] = begin(deployment, task)
    deployment.settle(run, result)


def states(deployment: Deployment, *tasks: TaskId) -> list[str]:
    """Return the states of tasks."""
    return [deployment.state(task) for task in tasks]


def dag_of(deployment: Deployment, task: TaskId) -> DagId:
    """Return the graph of a task."""
    return DagId(deployment.row(task)["dag_id"])


def status(deployment: Deployment, task: TaskId) -> str:
    """Return the status of a task's graph."""
    sql = "SELECT status FROM graphs WHERE id = :id"
    return str(deployment.one(sql, id=dag_of(deployment, task))["status"])


def assert_invariants(deployment: Deployment) -> None:
    """Fail if any invariant is violated."""
    violated = violations(deployment.dispatcher)
    assert not violated, describe_violations(violated)
