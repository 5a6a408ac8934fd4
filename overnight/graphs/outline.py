"""A graph as a tree of lines: each task is below its deepest parent."""

from collections.abc import Iterator
from dataclasses import dataclass

from overnight.graphs.layout import depths
from overnight.models.dags import Dag, DagTaskState

# Deeper tasks are not indented further, so that a long chain stays on the page.
MAX_INDENT = 12


@dataclass(frozen=True)
class BranchStyle:
    """The characters that draw the branches of a tree."""

    middle: str
    last: str
    vertical: str
    blank: str


BOXES = BranchStyle("├─ ", "└─ ", "│  ", "   ")
ASCII = BranchStyle("|- ", "`- ", "|  ", "   ")


@dataclass(frozen=True)
class OutlineLine:
    """One task of the tree, and the names of its other parents."""

    branch: str
    task: DagTaskState
    also_after: list[str]


def outline(dag: Dag, style: BranchStyle = BOXES) -> Iterator[OutlineLine]:
    """Yield the lines of a graph; every task has one line."""
    index = {task.id: number for number, task in enumerate(dag.tasks)}
    pairs = [
        (index[edge.parent], index[edge.child])
        for edge in dag.edges
        if edge.parent in index and edge.child in index
    ]
    depth = depths(len(dag.tasks), pairs)
    parents: list[list[int]] = [[] for _ in dag.tasks]
    for parent, child in pairs:
        parents[child].append(parent)
    children: list[list[int]] = [[] for _ in dag.tasks]
    tree_parent: list[int | None] = []
    for task in range(len(dag.tasks)):
        # The deepest parent probably ends last; of equally deep ones the first is taken.
        deepest = max(parents[task], key=lambda parent: (depth[parent], -parent), default=None)
        tree_parent.append(deepest)
        if deepest is not None:
            children[deepest].append(task)
    # A stack instead of recursion, because the author of the graph chooses the depth.
    roots = [task for task, parent in enumerate(tree_parent) if parent is None]
    stack = [(task, "", 0, task == roots[-1]) for task in reversed(roots)]
    while stack:
        task, prefix, level, is_last = stack.pop()
        others = [
            dag.tasks[parent].label
            for parent in sorted(parents[task])
            if parent != tree_parent[task]
        ]
        branch = style.last if is_last else style.middle
        yield OutlineLine(prefix + branch, dag.tasks[task], others)
        inner = prefix + (style.blank if is_last else style.vertical)
        inner = inner if level < MAX_INDENT else prefix
        below = children[task]
        stack += [(child, inner, level + 1, child == below[-1]) for child in reversed(below)]
