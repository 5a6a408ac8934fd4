"""The drawing of a graph: what is folded into one box, and where a box leads."""

import re
from datetime import UTC, datetime

from overnight.models.dags import Dag
from overnight_server.dashboard.clocks import Clock
from overnight_server.dashboard.graph_picture import draw_graph, fold_siblings

NOW = datetime(2026, 11, 17, 7, 12, tzinfo=UTC)
COUNTS = ("total", "open", "completed", "failed", "cancelled")


def fan(size: int, **states: str) -> Dag:
    """Return a graph of one task, `size` tasks after it, and one after all of these."""
    middle = [f"m{number}" for number in range(size)]
    ids = ["first", *middle, "last"]
    tasks = [
        {
            "id": one,
            "title": one,
            "type": "research" if one in middle else "code",
            "status": "pending",
            "state": states.get(one, "pending"),
            "max_attempts": 1,
        }
        for one in ids
    ]
    edges = [
        *({"parent": "first", "child": one} for one in middle),
        *({"parent": one, "child": "last"} for one in middle),
    ]
    return Dag.model_validate(
        {
            "id": "dag_01M7TY3C9XHMQRNEE28T1YGW00",
            "title": "A fan",
            "status": "pending",
            "counts": dict.fromkeys(COUNTS, 0) | {"total": len(ids)},
            "created_at": NOW,
            "created_by": "human:ada",
            "tasks": tasks,
            "edges": [{**edge, "condition": "success", "satisfied": False} for edge in edges],
        }
    )


def test_like_siblings_of_a_large_graph_share_a_box() -> None:
    dag = fan(40, m3="running", m4="dead_lettered")

    drawing = draw_graph(dag, Clock(NOW, "UTC"))

    assert [len(node.tasks) for node in fold_siblings(dag)] == [1, 40, 1]
    assert (drawing.drawn, drawing.is_whole, drawing.is_folded) == (42, True, True)
    assert drawing.svg.count('class="node ') == 3
    assert drawing.svg.count('class="edge') == 2
    assert 'aria-label="40 tasks, research: 38 pending · 1 running · 1 dead"' in drawing.svg
    assert 'class="node dead_lettered"' in drawing.svg
    assert re.search(r'href="/tasks\?q=graph%3Adag_\w+\+type%3A%22research%22"', drawing.svg)


def test_a_small_graph_is_not_folded_and_the_picked_task_stays_alone() -> None:
    assert [len(node.tasks) for node in fold_siblings(fan(20))] == [1] * 22
    assert sorted(len(node.tasks) for node in fold_siblings(fan(40), "m7")) == [1, 1, 1, 39]


def test_tasks_of_another_type_or_with_other_neighbours_are_not_folded() -> None:
    dag = fan(40)
    dag.tasks[1] = dag.tasks[1].model_copy(update={"type": "code"})
    dag.edges.remove(
        next(edge for edge in dag.edges if (edge.parent, edge.child) == ("m5", "last"))
    )

    assert sorted(len(node.tasks) for node in fold_siblings(dag)) == [1, 1, 1, 1, 38]
