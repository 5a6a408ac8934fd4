"""Small graphs for tests, and starting just the tasks of them that a test is about."""

from collections.abc import Sequence

from app.domain.claims import Run
from app.domain.ids import TaskId, UserId
from app.intake.submit import Edge, NewTask, submit_graph
from app.outcome.settle import release
from tests.support.house import AGENT, LOOSE, House


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
