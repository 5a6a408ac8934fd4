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
    tasks = [NewTask(f"task {number}", "echo") for number in range(size)]
    made = submit_graph(
        deployment.app, user, tasks, LOOSE, edges=[Edge(*edge) for edge in edges], title="a graph"
    )
    return [one.task_id for one in made]


def begin(deployment: Deployment, *task_ids: TaskId, agent: str = AGENT) -> list[Run]:
    """Claim and start these ready tasks; release all other claims."""
    claims = {one.claim.task_id: one for one in deployment.claim().claims}
    wanted = [claims.pop(task_id) for task_id in task_ids]
    release(deployment.dispatcher, list(claims.values()), reason="test")
    runs = [deployment.start(claimed, agent) for claimed in wanted]
    return [run for run in runs if run is not None]


def linked(deployment: Deployment, user: UserId, size: int, *edges: Edge) -> list[TaskId]:
    """Submit `size` tasks as one graph with these edges."""
    tasks = [NewTask(f"task {place}", "echo") for place in range(size)]
    made = submit_graph(deployment.app, user, tasks, LOOSE, edges=edges, title="a graph")
    return [one.task_id for one in made]


def end(deployment: Deployment, task: TaskId, result: Result) -> None:
    """Run one ready task and settle it with this result."""
    deployment.settle(*begin(deployment, task), result)


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
    found = violations(deployment.dispatcher)
    assert not found, describe_violations(found)
