"""Compute where the boxes and lines of a drawn graph go, in layers from top to bottom. Pure.

This is Sugiyama's method. Each task is one layer below its lowest parent. An edge that crosses a
layer gets a node of its own in it. Layers are sorted by the mean position of their neighbours,
downwards and upwards in turn, and the order with the fewest crossings is kept. Finally every node
moves towards its neighbours as far as the order allows. The same graph always gives the same
layout.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from overnight.graphs.shape import topological_order

SWEEPS = 12
PULLS = 8
# With more nodes for crossing edges than this, edges are drawn as straight lines.
MAX_PASSING = 20_000
# Counting crossings takes too long for larger graphs, which nobody can read anyway.
MAX_COUNTED = 20_000


@dataclass(frozen=True)
class Sizes:
    """Lengths in drawing units; widths are even, so that centres are whole numbers."""

    width: int = 200
    height: int = 56
    passing: int = 8
    gap_x: int = 24
    gap_y: int = 56
    margin: int = 16


@dataclass(frozen=True)
class Box:
    """The box of a task: its upper left corner and its size."""

    x: int
    y: int
    width: int
    height: int


Point = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """A box for each task, a path for each edge (in the requested order), and the total size."""

    boxes: list[Box]
    paths: list[list[Point]]
    width: int
    height: int


@dataclass(frozen=True)
class _Layers:
    """The nodes of each layer, and the short edges between neighbouring layers.

    Nodes below `count` are tasks; the others are where a long edge crosses a layer. `chains` lists
    the nodes of each edge.
    """

    count: int
    rows: list[list[int]]
    above: list[list[int]]
    below: list[list[int]]
    chains: list[list[int]]


def layout(count: int, edges: Sequence[tuple[int, int]], sizes: Sizes | None = None) -> Layout:
    """Return the layout of `count` tasks and (parent, child) edges; a cycle raises ValueError."""
    sizes = sizes or Sizes()
    if not count:
        return Layout([], [], 2 * sizes.margin, 2 * sizes.margin)
    layers = _layered(count, edges)
    _order(layers)
    centres = _centres(layers, sizes)
    return _place(layers, centres, sizes)


def depths(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each task: one below its lowest parent.

    >>> depths(4, [(0, 1), (1, 3), (2, 3)])
    [0, 1, 0, 2]
    """
    children: list[list[int]] = [[] for _ in range(count)]
    for parent, child in edges:
        children[parent].append(child)
    order = topological_order(count, edges)
    if len(order) < count:
        raise ValueError("a graph with a cycle cannot be drawn in layers")
    depth = [0] * count
    for task in order:
        for child in children[task]:
            depth[child] = max(depth[child], depth[task] + 1)
    return depth


def _layered(count: int, edges: Sequence[tuple[int, int]]) -> _Layers:
    depth = depths(count, edges)
    passing = sum(depth[child] - depth[parent] - 1 for parent, child in edges)
    bends = passing <= MAX_PASSING
    rows: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for task in range(count):
        rows[depth[task]].append(task)
    size = count + (passing if bends else 0)
    above: list[list[int]] = [[] for _ in range(size)]
    below: list[list[int]] = [[] for _ in range(size)]
    chains = []
    free = count
    for parent, child in edges:
        chain = [parent]
        if bends:
            for row in range(depth[parent] + 1, depth[child]):
                rows[row].append(free)
                chain.append(free)
                free += 1
        chain.append(child)
        for upper, lower in pairwise(chain):
            below[upper].append(lower)
            above[lower].append(upper)
        chains.append(chain)
    return _Layers(count, rows, above, below, chains)


def _order(layers: _Layers) -> None:
    """Sort each layer; of all orders that were tried, keep the one with the fewest crossings."""
    place = _places(layers)
    counts = len(layers.above) <= MAX_COUNTED
    fewest = _crossings(layers, place) if counts else 0
    best = [list(row) for row in layers.rows]
    for sweep in range(SWEEPS):
        if counts and not fewest:
            break
        downwards = sweep % 2 == 0
        rows = layers.rows if downwards else layers.rows[::-1]
        neighbours = layers.above if downwards else layers.below
        for row in rows:
            # Sorting is stable, so a node without neighbours keeps its position.
            row.sort(
                key=lambda node: _mean([place[each] for each in neighbours[node]], place[node])
            )
            for number, node in enumerate(row):
                place[node] = number
        crossings = _crossings(layers, place) if counts else -1
        if crossings < fewest:
            fewest, best = crossings, [list(row) for row in layers.rows]
    for row, kept in zip(layers.rows, best, strict=True):
        row[:] = kept


def _crossings(layers: _Layers, place: Sequence[int]) -> int:
    """Return the number of pairs of short edges that cross."""
    crossings = 0
    for row in layers.rows:
        ends_so_far: list[int] = []
        for upper in row:
            ends = sorted(place[lower] for lower in layers.below[upper])
            crossings += sum(len(ends_so_far) - bisect_right(ends_so_far, end) for end in ends)
            for end in ends:
                insort(ends_so_far, end)
    return crossings


def _centres(layers: _Layers, sizes: Sizes) -> list[float]:
    """Return the horizontal centre of each node, without overlaps and in the order of its layer."""

    def width(node: int) -> int:
        return sizes.width if node < layers.count else sizes.passing

    centre = [0.0] * len(layers.above)
    gaps = [
        [(width(a) + width(b)) / 2 + sizes.gap_x for a, b in pairwise(row)] for row in layers.rows
    ]
    for row, between in zip(layers.rows, gaps, strict=True):
        at = -sum(between) / 2
        for node, gap in zip(row, [*between, 0.0], strict=True):
            centre[node] = at
            at += gap
    for pull in range(PULLS):
        downwards = pull % 2 == 0
        neighbours = layers.above if downwards else layers.below
        rows = list(zip(layers.rows, gaps, strict=True))
        for row, between in rows if downwards else rows[::-1]:
            wanted = [
                _mean([centre[each] for each in neighbours[node]], centre[node]) for node in row
            ]
            for node, at in zip(row, _spread(wanted, between), strict=True):
                centre[node] = at
    return centre


def _spread(wanted: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """Return positions near the wanted ones, each at least its gap from the next.

    The result is the mean of pushing all to the right and all to the left; because both keep the
    gaps, their mean does too.
    """
    right = list(wanted)
    for number, gap in enumerate(gaps):
        right[number + 1] = max(right[number + 1], right[number] + gap)
    left = list(wanted)
    for number in range(len(gaps) - 1, -1, -1):
        left[number] = min(left[number], left[number + 1] - gaps[number])
    return [(a + b) / 2 for a, b in zip(left, right, strict=True)]


def _place(layers: _Layers, centres: Sequence[float], sizes: Sizes) -> Layout:
    half = sizes.width // 2
    leftmost = min(centre - half for centre in centres)
    # All centres are rounded down by the same amount, so whole gaps stay whole.
    middle = [int(centre - leftmost // 1) + sizes.margin for centre in centres]
    step = sizes.height + sizes.gap_y
    top = [0] * len(centres)
    for number, row in enumerate(layers.rows):
        for node in row:
            top[node] = sizes.margin + number * step
    boxes = [
        Box(middle[task] - half, top[task], sizes.width, sizes.height)
        for task in range(layers.count)
    ]
    paths: list[list[Point]] = []
    for chain in layers.chains:
        path: list[Point] = [(middle[chain[0]], top[chain[0]] + sizes.height)]
        for node in chain[1:-1]:
            path += [(middle[node], top[node]), (middle[node], top[node] + sizes.height)]
        path.append((middle[chain[-1]], top[chain[-1]]))
        paths.append(path)
    width = max(middle) + half + sizes.margin
    return Layout(boxes, paths, width, len(layers.rows) * step - sizes.gap_y + 2 * sizes.margin)


def _places(layers: _Layers) -> list[int]:
    place = [0] * len(layers.above)
    for row in layers.rows:
        for number, node in enumerate(row):
            place[node] = number
    return place


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
