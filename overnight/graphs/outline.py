"""A graph as a tree of lines: each task below the last one it waits for."""

from collections.abc import Iterator
from dataclasses import dataclass

from overnight.graphs.layout import depths
from overnight.models.dags import Dag, DagTaskState

# A chain of a thousand tasks must not run off the page.
DEEPEST = 12


@dataclass(frozen=True)
class Branches:
    """How the lines of a tree are drawn."""

    more: str
    last: str
    along: str
    blank: str


BOXES = Branches("├─ ", "└─ ", "│  ", "   ")
ASCII = Branches("|- ", "`- ", "|  ", "   ")


@dataclass(frozen=True)
class Line:
    """One task of the tree, and the names of what it waits for besides what it hangs below."""

    branch: str
    task: DagTaskState
    also_after: list[str]


def outline(dag: Dag, branches: Branches = BOXES) -> Iterator[Line]:
    """Yield a graph line by line; every task stands in it once."""
    place = {task.id: number for number, task in enumerate(dag.tasks)}
    pairs = [
        (place[edge.parent], place[edge.child])
        for edge in dag.edges
        if edge.parent in place and edge.child in place
    ]
    depth = depths(len(dag.tasks), pairs)
    parents: list[list[int]] = [[] for _ in dag.tasks]
    for parent, child in pairs:
        parents[child].append(parent)
    below: list[list[int]] = [[] for _ in dag.tasks]
    hangs: list[int | None] = []
    for task in range(len(dag.tasks)):
        # The deepest of them ends last, as far as one can tell; of equals, the first.
        under = max(parents[task], key=lambda one: (depth[one], -one), default=None)
        hangs.append(under)
        if under is not None:
            below[under].append(task)
    # A list of what is still to write, not recursion: the depth is the author's choice.
    tops = [task for task, under in enumerate(hangs) if under is None]
    todo = [(task, "", 0, task == tops[-1]) for task in reversed(tops)] if tops else []
    while todo:
        task, prefix, level, is_last = todo.pop()
        also = [dag.tasks[one].label for one in sorted(parents[task]) if one != hangs[task]]
        branch = branches.last if is_last else branches.more
        yield Line(prefix + branch, dag.tasks[task], also)
        inner = prefix + (branches.blank if is_last else branches.along)
        inner = inner if level < DEEPEST else prefix
        children = below[task]
        todo += [(one, inner, level + 1, one == children[-1]) for one in reversed(children)]
