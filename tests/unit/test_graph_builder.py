"""The graph builder and the shape of built graphs."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight import dag, errors
from overnight.graphs.shape import (
    dependencies_of,
    ends_of,
    find_cycle,
    longest_chain,
    topological_order,
)
from overnight.models.dags import DagCreate

Edges = list[tuple[int, int]]


def graphs(most: int = 8) -> st.SearchStrategy[tuple[int, Edges]]:
    """Any directed graph without doubled edges and loops; cycles included."""

    def edges(count: int) -> st.SearchStrategy[tuple[int, Edges]]:
        place = st.integers(0, count - 1)
        pairs = st.lists(st.tuples(place, place), unique=True, max_size=2 * count)
        return pairs.map(lambda pairs: (count, [(a, b) for a, b in pairs if a != b]))

    return st.integers(1, most).flatmap(edges)


def test_a_built_graph_has_its_dependencies() -> None:
    with dag("landing page", budget_usd=5, on_unmet="continue") as page:
        research = page.task("Research competitors", type="research", prompt="look around")
        design = page.task("Design", name="wireframe", after=research)
        page.task("Build it", after=[research, design], timeout_seconds=60, on_unmet="cancel")
        page.task("Clean up", after=[research.finished, design.failed])

    assert page.request().model_dump(mode="json", exclude_unset=True) == {
        "title": "landing page",
        "budget_usd": 5.0,
        "on_unmet": "continue",
        "tasks": [
            {
                "name": "research-competitors",
                "title": "Research competitors",
                "type": "research",
                "prompt": "look around",
            },
            {"name": "wireframe", "title": "Design", "after": [{"task": "research-competitors"}]},
            {
                "name": "build-it",
                "title": "Build it",
                "after": [{"task": "research-competitors"}, {"task": "wireframe"}],
                "timeout_seconds": 60,
                "on_unmet": "cancel",
            },
            {
                "name": "clean-up",
                "title": "Clean up",
                "after": [
                    {"task": "research-competitors", "condition": "finished"},
                    {"task": "wireframe", "condition": "failure"},
                ],
            },
        ],
    }


def test_names_made_from_titles_are_unique_and_legal() -> None:
    graph = dag("names")

    names = [
        graph.task(title).name for title in ("Say hi!", "say HI", "…", "…", "é" * 200, "a-" * 90)
    ]

    assert names[:4] == ["say-hi", "say-hi-2", "task", "task-2"]
    assert all(len(name) <= 100 for name in names)
    assert len(graph.request().tasks) == 6


def test_a_wrong_field_of_a_graph_is_refused_by_the_client() -> None:
    graph = dag("wrong")
    graph.task("a", priority=9)

    with pytest.raises(errors.InvalidRequest) as refused:
        graph.request()

    assert [wrong.field for wrong in refused.value.fields] == ["tasks.0.priority"]


def test_two_tasks_of_one_name_are_refused_by_the_client() -> None:
    graph = dag("wrong")
    graph.task("a", name="x")
    graph.task("b", name="x")

    with pytest.raises(errors.InvalidGraph, match=r"tasks\.1\.name: 'x' is the name of tasks\.0"):
        graph.request()


def test_a_task_of_another_graph_cannot_be_waited_for() -> None:
    other = dag("one").task("a")

    with pytest.raises(ValueError, match="another graph"):
        dag("two").task("b", after=[other])


@pytest.mark.parametrize("after", ["a", ["a"], [None]])
def test_only_a_task_of_the_builder_can_be_waited_for(after: Any) -> None:
    graph = dag("one")
    graph.task("a")

    with pytest.raises(TypeError, match=r"what task\(\) returned"):
        graph.task("b", after=after)


def test_a_step_has_no_id_before_the_submit() -> None:
    step = dag("one").task("a")

    with pytest.raises(LookupError, match="not been submitted"):
        _ = step.id


@given(graphs())
def test_a_topological_order_exists_exactly_without_a_cycle(graph: tuple[int, Edges]) -> None:
    count, edges = graph

    order, ring = topological_order(count, edges), find_cycle(count, edges)

    assert (len(order) == count) == (not ring)
    place = {task: number for number, task in enumerate(order)}
    assert all(place[a] < place[b] for a, b in edges if a in place and b in place)
    if ring:
        assert ring[0] == ring[-1] == min(ring)
        assert set(pairwise(ring)) <= set(edges)
        assert len(set(ring)) == len(ring) - 1


@given(graphs())
def test_the_longest_chain_is_a_chain_and_none_is_longer(graph: tuple[int, Edges]) -> None:
    count, edges = graph
    edges = [(min(edge), max(edge)) for edge in edges]
    edges = list(dict.fromkeys(edges))

    chain = longest_chain(count, edges)

    assert set(pairwise(chain)) <= set(edges)
    depth = [1] * count
    for task in range(count):
        depth[task] = 1 + max((depth[a] for a, b in edges if b == task), default=0)
    assert len(chain) == max(depth)
    roots, leaves = ends_of(count, edges)
    assert chain[0] in roots
    assert chain[-1] in leaves


@given(graphs(5))
def test_a_graph_is_refused_exactly_if_it_has_a_cycle(graph: tuple[int, Edges]) -> None:
    count, edges = graph
    tasks = [
        {"name": f"t{task}", "after": [f"t{a}" for a, b in edges if b == task]}
        for task in range(count)
    ]
    graph_request = DagCreate.model_validate({"title": "any", "tasks": tasks})

    if not find_cycle(count, edges):
        assert {(each.parent, each.child) for each in dependencies_of(graph_request)} == set(edges)
        return
    with pytest.raises(errors.InvalidGraph) as refused:
        dependencies_of(graph_request)
    [fault] = refused.value.fields
    assert fault.message.startswith("Would create circular dependency: t")
