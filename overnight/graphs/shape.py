"""The structure of a graph: dependencies, order, cycles. Pure functions.

Tasks are numbered by their index in the list of tasks; a pair is (parent, child).
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from overnight.errors import FieldError, InvalidGraph
from overnight.models.dags import Condition, DagCreate, DagTask, Policy
from overnight.models.field_errors import validate

MAX_LISTED = 20
Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Dependency:
    """One dependency between two tasks, and the field of the request that states it."""

    parent: int
    child: int
    condition: Condition
    on_unmet: Policy
    field: str


def checked_graph(graph: DagCreate | Mapping[str, Any]) -> DagCreate:
    """Return the graph if the service would accept its structure.

    Raises InvalidRequest for a wrong field, and InvalidGraph for a cycle or an unknown name.
    """
    checked = graph if isinstance(graph, DagCreate) else validate(DagCreate, graph)
    dependencies_of(checked)
    return checked


def dependencies_of(graph: DagCreate) -> list[Dependency]:
    """Return the dependencies of a graph; raises InvalidGraph with every wrong field."""
    faults: list[FieldError] = []
    indexes = _indexes_by_name(graph.tasks, faults)
    dependencies: list[Dependency] = []
    pairs: set[tuple[int, int]] = set()
    for dependency in _requested(graph, indexes, faults):
        pair = (dependency.parent, dependency.child)
        name = graph.tasks[dependency.parent].name
        if dependency.parent == dependency.child:
            faults.append(_cycle_fault(dependency.field, [name, name]))
        elif pair in pairs:
            message = f"{name!r} is listed twice"
            faults.append(FieldError(dependency.field, message, "each task once"))
        else:
            pairs.add(pair)
            dependencies.append(dependency)
    if not faults:
        faults = _cycle_faults(graph.tasks, dependencies)
    if faults:
        raise InvalidGraph(faults[:MAX_LISTED])
    return dependencies


def ends_of(count: int, pairs: Pairs) -> tuple[list[int], list[int]]:
    """Return the roots (tasks without parents) and the leaves (tasks without children).

    >>> ends_of(3, [(0, 2), (1, 2)])
    ([0, 1], [2])
    """
    children = {child for _, child in pairs}
    parents = {parent for parent, _ in pairs}
    return (
        [task for task in range(count) if task not in children],
        [task for task in range(count) if task not in parents],
    )


def longest_chain(count: int, pairs: Pairs) -> list[int]:
    """Return the tasks of the longest chain, first to last; of equal chains, the first.

    >>> longest_chain(4, [(0, 3), (1, 2), (2, 3)])
    [1, 2, 3]
    """
    children = _children(count, pairs)
    lengths = [1] * count
    for task in reversed(topological_order(count, pairs)):
        lengths[task] = 1 + max((lengths[child] for child in children[task]), default=0)
    chain: list[int] = []
    candidates: Sequence[int] = range(count)
    while candidates:
        chain.append(max(candidates, key=lambda task: (lengths[task], -task)))
        candidates = children[chain[-1]]
    return chain


def topological_order(count: int, pairs: Pairs) -> list[int]:
    """Return the tasks, each after its parents; tasks on a cycle or behind one are missing."""
    children = _children(count, pairs)
    unmet = [0] * count
    for _, child in pairs:
        unmet[child] += 1
    order = [task for task in range(count) if not unmet[task]]
    for task in order:
        for child in children[task]:
            unmet[child] -= 1
            if not unmet[child]:
                order.append(child)
    return order


def find_cycle(count: int, pairs: Pairs) -> list[int]:
    """Return the tasks of one cycle, the first again at the end; empty if there is no cycle.

    >>> find_cycle(3, [(0, 1), (1, 2), (2, 1)])
    [1, 2, 1]
    """
    unordered = set(range(count)) - set(topological_order(count, pairs))
    if not unordered:
        return []
    parents: dict[int, list[int]] = {}
    for parent, child in pairs:
        if parent in unordered and child in unordered:
            parents.setdefault(child, []).append(parent)
    # Each of these tasks has a parent among them, so following parents must return to a task.
    path: list[int] = []
    index: dict[int, int] = {}
    task = min(task for task in unordered if task in parents)
    while task not in index:
        index[task] = len(path)
        path.append(task)
        task = min(parents[task])
    cycle = path[index[task] :][::-1]
    first = cycle.index(min(cycle))
    cycle = cycle[first:] + cycle[:first]
    return [*cycle, cycle[0]]


def _indexes_by_name(tasks: Sequence[DagTask], faults: list[FieldError]) -> dict[str, int]:
    indexes: dict[str, int] = {}
    for index, task in enumerate(tasks):
        first = indexes.setdefault(task.name, index)
        if first != index:
            message = f"{task.name!r} is the name of tasks.{first} already"
            faults.append(FieldError(f"tasks.{index}.name", message, "a name of its own"))
    return indexes


def _requested(
    graph: DagCreate, indexes: dict[str, int], faults: list[FieldError]
) -> Iterable[Dependency]:
    """Yield the dependencies of all `after` and `edges` whose names exist."""
    for child, task in enumerate(graph.tasks):
        for number, after in enumerate(task.after):
            field = f"tasks.{child}.after.{number}"
            parent = _index_of(after.task, field, indexes, faults)
            if parent is not None:
                policy = after.on_unmet or task.on_unmet or graph.on_unmet
                yield Dependency(parent, child, after.condition, policy, field)
    for number, edge in enumerate(graph.edges):
        field = f"edges.{number}"
        edge_parent = _index_of(edge.parent, f"{field}.parent", indexes, faults)
        edge_child = _index_of(edge.child, f"{field}.child", indexes, faults)
        if edge_parent is not None and edge_child is not None:
            policy = edge.on_unmet or graph.tasks[edge_child].on_unmet or graph.on_unmet
            yield Dependency(edge_parent, edge_child, edge.condition, policy, field)


def _index_of(
    name: str, field: str, indexes: dict[str, int], faults: list[FieldError]
) -> int | None:
    index = indexes.get(name)
    if index is None:
        nearest = difflib.get_close_matches(name, indexes, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        names = list(indexes)
        legal = ", ".join(names[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
        message = f"no task of this graph is called {name!r}{hint}"
        faults.append(FieldError(field, message, f"one of {legal}"))
    return index


def _cycle_faults(tasks: Sequence[DagTask], dependencies: Sequence[Dependency]) -> list[FieldError]:
    cycle = find_cycle(len(tasks), [(each.parent, each.child) for each in dependencies])
    if not cycle:
        return []
    steps = set(pairwise(cycle))
    # Of the fields that form the cycle, the last one closed it.
    fields = [each.field for each in dependencies if (each.parent, each.child) in steps]
    return [_cycle_fault(fields[-1], [tasks[index].name for index in cycle])]


def _cycle_fault(field: str, names: Sequence[str]) -> FieldError:
    cycle = " → ".join(names)
    return FieldError(field, f"Would create circular dependency: {cycle}", "edges without a cycle")


def _children(count: int, pairs: Pairs) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in range(count)]
    for parent, child in pairs:
        children[parent].append(child)
    return children
