"""Ways through a graph."""

from collections import deque
from collections.abc import Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def way(edges: Iterable[tuple[T, T]], start: T, goal: T) -> list[T] | None:
    """Return a shortest way along (parent, child) edges, both ends included, or None.

    >>> way([(1, 2), (2, 3), (1, 3)], 1, 3)
    [1, 3]
    """
    children: dict[T, list[T]] = {}
    for parent, child in edges:
        children.setdefault(parent, []).append(child)
    came_from: dict[T, T | None] = {start: None}
    line = deque([start])
    while line and goal not in came_from:
        here = line.popleft()
        for child in children.get(here, ()):
            if child not in came_from:
                came_from[child] = here
                line.append(child)
    if goal not in came_from:
        return None
    found: list[T] = []
    step: T | None = goal
    while step is not None:
        found.append(step)
        step = came_from[step]
    return found[::-1]
