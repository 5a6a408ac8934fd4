"""Drawn graphs: nothing overlaps, everything goes downward, and no name becomes markup."""

import re
import time
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight.graphs.draw import FORMS, SYMBOLS, draw, shortened
from overnight.graphs.layout import Box, depths, layout
from overnight.graphs.outline import MAX_INDENT, outline
from overnight.graphs.shape import longest_chain
from overnight.models.dags import (
    CriticalPath,
    Dag,
    DagCounts,
    DagEdgeState,
    DagStatus,
    DagTaskState,
)

Edges = list[tuple[int, int]]
SVG = "{http://www.w3.org/2000/svg}"
NASTY = "</text><script>alert('&')</script> \"x\" \\ [b]--> #1; \x07\u202e\ufffe"


@st.composite
def acyclic(draw: st.DrawFn, most: int = 14) -> tuple[int, Edges]:
    count = draw(st.integers(1, most))
    place = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(place, place), max_size=3 * count))
    return count, list(dict.fromkeys((min(p), max(p)) for p in pairs if p[0] != p[1]))


def graph(
    count: int, edges: Edges, *, states: list[str] | None = None, name: str = "task {}"
) -> Dag:
    states = states or ["pending"] * count
    tasks = [
        DagTaskState(
            id=f"task_{n}",
            name=name.format(n),
            title=f"Title {n}",
            type="echo",
            status="pending",
            state=states[n],
            max_attempts=3,
        )
        for n in range(count)
    ]
    chain = longest_chain(count, edges)
    return Dag(
        id="dag_1",
        title="a graph",
        status=DagStatus.RUNNING,
        counts=DagCounts(total=count, open=count, completed=0, failed=0, cancelled=0),
        created_at=datetime(2030, 1, 1, tzinfo=UTC),
        critical_path=CriticalPath(tasks=[tasks[n].label for n in chain], weight=len(chain)),
        tasks=tasks,
        edges=[
            DagEdgeState(
                parent=f"task_{a}", child=f"task_{b}", condition="success", satisfied=False
            )
            for a, b in edges
        ],
    )


def overlap(first: Box, second: Box) -> bool:
    return (
        first.x < second.x + second.width
        and second.x < first.x + first.width
        and first.y < second.y + second.height
        and second.y < first.y + first.height
    )


@given(acyclic())
def test_no_two_boxes_overlap_and_every_edge_goes_downward(graph: tuple[int, Edges]) -> None:
    count, edges = graph

    picture = layout(count, edges)

    boxes = picture.boxes
    assert not any(overlap(boxes[a], boxes[b]) for a in range(count) for b in range(a))
    assert all(box.x >= 0 and box.x + box.width <= picture.width for box in boxes)
    assert all(box.y >= 0 and box.y + box.height <= picture.height for box in boxes)
    for (parent, child), path in zip(edges, picture.paths, strict=True):
        above, below = boxes[parent], boxes[child]
        assert path[0] == (above.x + above.width // 2, above.y + above.height)
        assert path[-1] == (below.x + below.width // 2, below.y)
        assert all(y < next_y for (_, y), (_, next_y) in pairwise(path))


@given(acyclic())
def test_an_edge_passes_through_no_box(graph: tuple[int, Edges]) -> None:
    count, edges = graph

    picture = layout(count, edges)

    for path in picture.paths:
        for x, y in path[1:-1]:
            inside = [
                box
                for box in picture.boxes
                if box.x < x < box.x + box.width and box.y <= y <= box.y + box.height
            ]
            assert not inside


@given(acyclic(), st.sampled_from(sorted(FORMS)))
def test_the_same_graph_gives_the_same_bytes(drawn: tuple[int, Edges], form: str) -> None:
    assert draw(graph(*drawn), form) == draw(graph(*drawn), form)  # type: ignore[arg-type]


@given(acyclic())
def test_the_tree_has_every_task_once_with_all_it_waits_for(drawn: tuple[int, Edges]) -> None:
    count, edges = drawn

    lines = list(outline(graph(count, edges)))

    assert sorted(line.task.id for line in lines) == sorted(f"task_{n}" for n in range(count))
    waits = sum(len(line.also_after) for line in lines)
    roots = count - len({child for _, child in edges})
    assert waits == len(edges) - (count - roots)


def test_a_task_is_below_its_lowest_parent() -> None:
    assert depths(5, [(0, 1), (1, 2), (0, 2), (3, 4)]) == [0, 1, 2, 0, 1]


def test_a_simple_crossing_is_undone() -> None:
    picture = layout(4, [(0, 3), (1, 2)])

    boxes = picture.boxes
    assert (boxes[0].x < boxes[1].x) == (boxes[3].x < boxes[2].x)


def test_a_chain_is_a_straight_line() -> None:
    picture = layout(5, [(n, n + 1) for n in range(4)])

    assert len({box.x for box in picture.boxes}) == 1


def test_an_empty_graph_is_an_empty_picture() -> None:
    assert layout(0, []).boxes == []
    assert ET.fromstring(draw(graph(1, []), "svg")).tag == f"{SVG}svg"


def test_a_cycle_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="cycle"):
        layout(2, [(0, 1), (1, 0)])


@pytest.mark.parametrize(
    "edges",
    [
        [(n, n + 1) for n in range(999)],
        [(0, n) for n in range(1, 999)] + [(n, 999) for n in range(1, 999)],
        [(n // 2, n) for n in range(1, 1000)],
        [(n, n + step) for step in (1, 7, 40) for n in range(1000 - step)],
        [(0, n) for n in range(1, 1000)] + [(n, n + 1) for n in range(1, 999)],
    ],
    ids=["chain", "fan", "tree", "woven", "comb"],
)
def test_a_thousand_tasks_are_drawn_in_reasonable_time(edges: Edges) -> None:
    began = time.process_time()

    text = draw(graph(1000, edges), "svg")

    assert time.process_time() - began < 20
    assert text.count("<g><title>") == 1000


def test_an_svg_has_a_description_for_screen_readers() -> None:
    states = ["completed", "running", "dead_lettered"]
    root = ET.fromstring(draw(graph(3, [(0, 1), (0, 2)], states=states), "svg"))

    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "title desc"
    assert root.findtext(f"{SVG}title") == "a graph"
    assert "A graph of 3 tasks" in (root.findtext(f"{SVG}desc") or "")
    boxes = root.findall(f"{SVG}g")
    assert [box.findtext(f"{SVG}title") for box in boxes] == [
        "task 0: Title 0, completed",
        "task 1: Title 1, running",
        "task 2: Title 2, dead lettered",
    ]
    shown = ["".join(box.itertext()) for box in boxes]
    assert all(
        f"{SYMBOLS[state]} {state.replace('_', ' ')}" in text
        for state, text in zip(states, shown, strict=True)
    )


def test_conditions_are_drawn_and_written() -> None:
    dag = graph(3, [(0, 1), (0, 2)])
    edges = [
        dag.edges[0].model_copy(update={"condition": "finished"}),
        dag.edges[1].model_copy(update={"condition": "failure"}),
    ]
    dag = dag.model_copy(update={"edges": edges})

    for form in ("svg", "dot", "mermaid"):
        drawn = draw(dag, form)  # type: ignore[arg-type]
        assert "in any case" in drawn
        assert "if it failed" in drawn


def test_no_name_becomes_markup_in_svg() -> None:
    dag = graph(1, [], name="{}" + NASTY).model_copy(update={"title": NASTY})

    root = ET.fromstring(draw(dag, "svg"))

    assert not root.findall(".//{*}script")
    assert (root.findtext(f"{SVG}title") or "").startswith("</text><script>")


def test_no_name_becomes_markup_in_dot() -> None:
    text = draw(graph(1, [], name="{}" + NASTY), "dot")

    [node] = [line for line in text.splitlines() if line.startswith("  n0 ")]
    label = re.match(r'  n0 \[label=("(?:[^"\\]|\\.)*"), fillcolor=', node)
    assert label is not None
    assert "\x07" not in text


def test_no_name_becomes_markup_in_mermaid() -> None:
    text = draw(graph(1, [], name="{}" + NASTY), "mermaid")

    [node] = [line for line in text.splitlines() if line.startswith("  n0[")]
    label = re.fullmatch(r'  n0\["([^"<>\[\]]*)<br/>pending"\]:::pending', node)
    assert label is not None
    assert re.sub(r"#\d+;", "", label[1]).replace(" ", "").isalnum()


def test_text_for_terminals_is_a_tree() -> None:
    dag = graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)], states=["completed", *["pending"] * 3])

    assert draw(dag, "ascii") == (
        "a graph\n"
        "`- task 0 [completed]\n"
        "   |- task 1 [pending]\n"
        "   |  `- task 3 [pending] (also after task 2)\n"
        "   `- task 2 [pending]\n"
    )
    assert "\x07" not in draw(graph(1, [], name="{}" + NASTY), "ascii")


def test_the_indentation_of_a_long_chain_is_limited() -> None:
    lines = list(outline(graph(1000, [(n, n + 1) for n in range(999)])))

    assert len(lines) == 1000
    assert max(len(line.branch) for line in lines) <= 3 * (MAX_INDENT + 2)


@pytest.mark.parametrize(
    ("text", "longest", "shown"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("", 5, ""),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
    ],
)
def test_a_label_is_cut_to_its_width(text: str, longest: int, shown: str) -> None:
    assert shortened(text, longest) == shown
