"""Small graphs for tests, and starting just the tasks of them that a test is about."""

from collections.abc import Sequence

from overnight_server.domain.claims import Run
from overnight_server.domain.ids import DagId, TaskId, UserId
from overnight_server.domain.results import Result
from overnight_server.intake.submit import Edge, NewTask, submit_graph
from overnight_server.outcome.settle import release
from tests.support.house import AGENT, LOOSE, House
from tests.support.invariants import told, violations


def graph(house: House, user: UserId, size: int, edges: Sequence[tuple[int, int]]) -> list[TaskId]:
    """Submit `size` tasks as one graph; an edge names the positions of parent and child."""
    tasks = [NewTask(f"task {number}", "echo") for number in range(size)]
    made = submit_graph(
        house.app, user, tasks, LOOSE, edges=[Edge(*edge) for edge in edges], title="a graph"
    )
    return [one.task_id for one in made]


def begin(house: House, *task_ids: TaskId, agent: str = AGENT) -> list[Run]:
    """Claim and start these ready tasks; whatever else the gate took is given back."""
    claims = {one.claim.task_id: one for one in house.claim().claims}
    wanted = [claims.pop(task_id) for task_id in task_ids]
    release(house.dispatcher, list(claims.values()), reason="test")
    runs = [house.start(claimed, agent) for claimed in wanted]
    return [run for run in runs if run is not None]


def linked(house: House, user: UserId, size: int, *edges: Edge) -> list[TaskId]:
    """Submit `size` tasks as one graph with these edges."""
    tasks = [NewTask(f"task {place}", "echo") for place in range(size)]
    made = submit_graph(house.app, user, tasks, LOOSE, edges=edges, title="a graph")
    return [one.task_id for one in made]


def end(house: House, task: TaskId, result: Result) -> None:
    """Run one ready task to this end."""
    house.settle(*begin(house, task), result)


def states(house: House, *tasks: TaskId) -> list[str]:
    """Return where tasks stand."""
    return [house.state(task) for task in tasks]


def dag_of(house: House, task: TaskId) -> DagId:
    """Return the graph of a task."""
    return DagId(house.row(task)["dag_id"])


def status(house: House, task: TaskId) -> str:
    """Return what a task's graph has come to."""
    sql = "SELECT status FROM graphs WHERE id = :id"
    return str(house.one(sql, id=dag_of(house, task))["status"])


def sound(house: House) -> None:
    """Look at every invariant."""
    found = violations(house.dispatcher)
    assert not found, told(found)
