"""A family of tasks on real processes, whose parent is killed again and again."""

from collections.abc import Callable
from pathlib import Path

import pytest

from overnight_server.domain.ids import parse_task
from tests.support.deployment import Deployment
from tests.support.invariants import describe_violations, violations
from tests.support.stack import SERVICES, Stack
from tests.support.wait import wait_until

# Every step between the first word of the parent and its second run.
STEPS = (
    *("artifact.before_commit", "artifact.after_commit"),
    *("spawn.before_commit", "spawn.after_commit", "wait.before_suspend"),
)


@pytest.mark.timeout(180)
def test_a_parent_killed_at_every_step_ends_once_with_its_childrens_outputs(
    build: Callable[..., Stack], deployment: Deployment, tmp_path: Path
) -> None:
    marks = tmp_path / "struck"
    marks.mkdir()
    fault = ",".join(f"{point}=kill@{marks / point}" for point in STEPS)
    stack = build(fault=fault, concurrency=1).start(*SERVICES).ready()
    _, client = stack.user()

    made = client.tasks.create("trip", type="family", payload={"children": 3}, max_attempts=10)
    parent = client.tasks.wait(made.id, timeout=120, poll=0.2)

    assert {mark.name for mark in marks.iterdir()} == set(STEPS)
    assert parent.output["states"] == ["completed"] * 3
    assert parent.output["outputs"] == [{"number": n} for n in (1, 2, 3)]
    children = deployment.rows(
        "SELECT state, attempts FROM tasks WHERE parent_id = :id", id=parse_task(made.id)
    )
    assert [one["state"] for one in children] == ["completed"] * 3
    # While the parent was killed and killed again, its children may have come to their end.
    *crashes, last = _outcomes(deployment, made.id)
    assert crashes in (["crash"] * 5, ["crash"] * 5 + ["suspended"])
    assert last == "completed"
    assert len(deployment.rows("SELECT * FROM artifacts")) == 1
    assert deployment.one("SELECT status FROM dags")["status"] == "completed"
    wait_until(lambda: deployment.one("SELECT sum(active) AS n FROM lanes")["n"] == 0, what="rest")
    violated = violations(deployment.owner, drained=True)
    assert not violated, describe_violations(violated)

    again = client.tasks.create("again", type="family", payload={"of": "sleep", "children": 2})
    client.tasks.wait(again.id, timeout=60, poll=0.2)
    assert _outcomes(deployment, again.id) == ["suspended", "completed"]


def _outcomes(deployment: Deployment, task: str) -> list[str]:
    rows = deployment.rows(
        "SELECT outcome FROM attempts WHERE task_id = :id ORDER BY epoch", id=parse_task(task)
    )
    return [row["outcome"] for row in rows]
