"""A graph on a terminal: states, durations and progress, whatever people call their tasks."""

import io
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from overnight.models.dags import Dag, DagCounts, DagEdgeState, DagStatus, DagTaskState
from overnight_server.cli.terminal import dag_tree, output


def task(number: int, state: str, **fields: Any) -> DagTaskState:
    return DagTaskState(
        **{
            "id": f"task_01J8K00000000000000000000{number}",
            "name": f"step-{number}",
            "title": "a step",
            "type": "echo",
            "status": "pending",
            "state": state,
            "max_attempts": 3,
            **fields,
        }
    )


def graph(*tasks: DagTaskState, **fields: Any) -> Dag:
    """A chain of these tasks."""
    edges = [
        DagEdgeState(parent=a.id, child=b.id, condition="success", satisfied=False)
        for a, b in pairwise(tasks)
    ]
    counts = DagCounts(total=len(tasks), open=1, completed=0, failed=1, cancelled=2)
    return Dag(
        **{
            "id": "dag_1",
            "title": "a night",
            "status": DagStatus.RUNNING,
            "counts": counts,
            "created_at": datetime(2030, 1, 1, tzinfo=UTC),
            "tasks": list(tasks),
            "edges": edges,
            **fields,
        }
    )


def test_each_line_shows_state_duration_and_reason() -> None:
    dag = graph(
        task(1, "completed", run_seconds=62.4, attempts=2),
        task(2, "running", run_seconds=3.21, progress={"fraction": 0.4, "message": "page 4"}),
        task(3, "dead_lettered", failure_reason="timeout", run_seconds=4000),
        task(4, "pending"),
        spent_usd=0.5,
    )

    assert list(dag_tree.lines(dag)) == [
        "a night",
        "dag_1  running, 3 of 4 ended, 1 failed, 2 cancelled, $0.50",
        "└─ ✓ step-1           00000001  completed      1m02s  attempt 2 of 3",
        "   └─ ▶ step-2        00000002  running        3.2s  40% page 4",
        "      └─ ✗ step-3     00000003  dead_lettered  1h06m  timeout",
        "         └─ … step-4  00000004  pending",
    ]


def test_control_characters_in_names_are_escaped() -> None:
    dag = graph(
        task(1, "running", name="a\x1b[2J", progress={"message": "b\x1b[2J"}), title="c\x1b[2J"
    )

    assert "\x1b" not in "\n".join(dag_tree.lines(dag))


def test_a_terminal_gets_the_same_lines_with_colours() -> None:
    dag = graph(task(1, "completed"), task(2, "dead_lettered", name="[red]plain[/red]"))
    screen = io.StringIO()

    console = Console(file=screen, force_terminal=True, color_system="standard", width=200)
    console.print(dag_tree._drawn(dag))
    plain = io.StringIO()
    Console(file=plain, width=200).print(dag_tree._drawn(dag))

    assert "\x1b[32m" in screen.getvalue()
    assert plain.getvalue().splitlines() == list(dag_tree.lines(dag))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0.0s"), (59.9, "59.9s"), (60, "1m00s"), (3599, "59m59s"), (3600, "1h00m")],
)
def test_a_duration_is_rounded_to_readable_units(seconds: float, shown: str) -> None:
    assert output.duration(seconds) == shown


@pytest.mark.parametrize("columns", [40, 80])
def test_a_task_fits_on_its_line_of_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda _stream: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    dag = graph(task(1, "completed", name="a-name-of-" + "x" * 80, run_seconds=62.4))

    title, facts, line = dag_tree.lines(dag)

    assert (title, facts.split()[0]) == ("a night", "1")
    assert "…" in line
    assert ("00000001" in line) == (columns == 80)
    assert len(line.removesuffix("  1m02s")) <= columns
