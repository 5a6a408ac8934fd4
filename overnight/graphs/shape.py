"""The shape of a graph: who waits for whom, and whether that can ever end. Pure."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from overnight.errors import FieldError, InvalidGraph
from overnight.models.dags import Condition, DagCreate, DagTask, Policy

SHOWN = 20
Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Dependency:
    """One dependency by places in the list of tasks, and the field that asked for it."""

    parent: int
    child: int
    condition: Condition
    on_unmet: Policy
    field: str


def dependencies_of(graph: DagCreate) -> list[Dependency]:
    """Return who waits for whom, or raise InvalidGraph with every fault that was found."""
    faults: list[FieldError] = []
    places = _places(graph.tasks, faults)
    links: list[Dependency] = []
    seen: set[tuple[int, int]] = set()
    for link in _asked(graph, places, faults):
        if link.parent == link.child:
            name = graph.tasks[link.parent].name
            faults.append(_circular(link.field, [name, name]))
        elif (link.parent, link.child) in seen:
            message = f"{graph.tasks[link.parent].name!r} is waited for already"
            faults.append(FieldError(link.field, message, "each task once"))
        else:
            seen.add((link.parent, link.child))
            links.append(link)
    if not faults:
        faults = _circles(graph.tasks, links)
    if faults:
        raise InvalidGraph(faults[:SHOWN])
    return links


def ends_of(count: int, pairs: Pairs) -> tuple[list[int], list[int]]:
    """Return the tasks that wait for nobody, and those that nobody waits for.

    >>> ends_of(3, [(0, 2), (1, 2)])
    ([0, 1], [2])
    """
    waiting = {child for _, child in pairs}
    waited_for = {parent for parent, _ in pairs}
    everyone = range(count)
    return (
        [task for task in everyone if task not in waiting],
        [task for task in everyone if task not in waited_for],
    )


def longest_chain(count: int, pairs: Pairs) -> list[int]:
    """Return the tasks of the longest chain, first to last; of equal ones, the one named first.

    >>> longest_chain(4, [(0, 3), (1, 2), (2, 3)])
    [1, 2, 3]
    """
    children = _below(count, pairs)
    lengths = [1] * count
    for task in reversed(topological_order(count, pairs)):
        lengths[task] = 1 + max((lengths[child] for child in children[task]), default=0)
    chain: list[int] = []
    ahead: Sequence[int] = range(count)
    while ahead:
        chain.append(max(ahead, key=lambda task: (lengths[task], -task)))
        ahead = children[chain[-1]]
    return chain


def topological_order(count: int, pairs: Pairs) -> list[int]:
    """Return the tasks, each after its dependencies; tasks on or behind a cycle are missing."""
    children = _below(count, pairs)
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
    """Return the tasks of one find_cycle, the first again at the end; nothing if there is none.

    >>> find_cycle(3, [(0, 1), (1, 2), (2, 1)])
    [1, 2, 1]
    """
    stuck = set(range(count)) - set(topological_order(count, pairs))
    if not stuck:
        return []
    parents: dict[int, list[int]] = {}
    for parent, child in pairs:
        if parent in stuck and child in stuck:
            parents.setdefault(child, []).append(parent)
    # Each of them waits for another of them, so going upwards comes back to where it has been.
    way: list[int] = []
    place: dict[int, int] = {}
    task = min(task for task in stuck if task in parents)
    while task not in place:
        place[task] = len(way)
        way.append(task)
        task = min(parents[task])
    ring = way[place[task] :][::-1]
    first = ring.index(min(ring))
    ring = ring[first:] + ring[:first]
    return [*ring, ring[0]]


def _places(tasks: Sequence[DagTask], faults: list[FieldError]) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, task in enumerate(tasks):
        first = places.setdefault(task.name, place)
        if first != place:
            message = f"{task.name!r} is the name of tasks.{first} already"
            faults.append(FieldError(f"tasks.{place}.name", message, "a name of its own"))
    return places


def _asked(
    graph: DagCreate, places: dict[str, int], faults: list[FieldError]
) -> Iterable[Dependency]:
    for child, task in enumerate(graph.tasks):
        for number, after in enumerate(task.after):
            field = f"tasks.{child}.after.{number}"
            parent = _find(after.task, field, places, faults)
            if parent is not None:
                policy = after.on_unmet or task.on_unmet or graph.on_unmet
                yield Dependency(parent, child, after.condition, policy, field)
    for number, edge in enumerate(graph.edges):
        field = f"edges.{number}"
        parent = _find(edge.parent, f"{field}.parent", places, faults)
        to = _find(edge.child, f"{field}.child", places, faults)
        if parent is not None and to is not None:
            policy = edge.on_unmet or graph.tasks[to].on_unmet or graph.on_unmet
            yield Dependency(parent, to, edge.condition, policy, field)


def _find(name: str, field: str, places: dict[str, int], faults: list[FieldError]) -> int | None:
    place = places.get(name)
    if place is None:
        near = difflib.get_close_matches(name, places, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = list(places)
        legal = ", ".join(known[:SHOWN]) + (", …" if len(known) > SHOWN else "")
        message = f"no task of this graph is called {name!r}{hint}"
        faults.append(FieldError(field, message, f"one of {legal}"))
    return place


def _circles(tasks: Sequence[DagTask], links: Sequence[Dependency]) -> list[FieldError]:
    ring = find_cycle(len(tasks), [(link.parent, link.child) for link in links])
    if not ring:
        return []
    steps = set(pairwise(ring))
    # The last field of the ring is the one that closed it.
    closing = [link.field for link in links if (link.parent, link.child) in steps][-1]
    return [_circular(closing, [tasks[place].name for place in ring])]


def _circular(field: str, names: Sequence[str]) -> FieldError:
    ring = " → ".join(names)
    return FieldError(field, f"Would create circular dependency: {ring}", "edges without a circle")


def _below(count: int, pairs: Pairs) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in range(count)]
    for parent, child in pairs:
        children[parent].append(child)
    return children
