"""Where the boxes and lines of a drawn graph go: top to bottom, one layer under the other. Pure.

The way of Sugiyama: each task stands one layer below the lowest it waits for; an edge that passes
a layer holds a place in it; layers are put in order by the mean place of their neighbours, back and
forth, and the order with the fewest crossings stays; then everything moves towards its neighbours
as far as the order allows. The same graph always gives the same picture.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from overnight.graphs.shape import topological_order

SWEEPS = 12
PULLS = 8
# Beyond this many places held for passing edges they are drawn straight instead.
MOST_PASSING = 20_000
# Counting crossings costs more than it is worth on pictures nobody can read anyway.
MOST_COUNTED = 20_000


@dataclass(frozen=True)
class Sizes:
    """Lengths in the unit of the drawing; widths are even, so that centres are whole numbers."""

    width: int = 200
    height: int = 56
    passing: int = 8
    gap_x: int = 24
    gap_y: int = 56
    margin: int = 16


@dataclass(frozen=True)
class Box:
    """Where a task stands: its left upper corner and its extent."""

    x: int
    y: int
    width: int
    height: int


Point = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """A box for each task, a way for each edge (in the order given), and the whole extent."""

    boxes: list[Box]
    ways: list[list[Point]]
    width: int
    height: int


@dataclass(frozen=True)
class _Layers:
    """Tasks and passing places, layer by layer, and the short edges between neighbours.

    Places from `count` on are held for passing edges; `chains` leads each edge through its own.
    """

    count: int
    rows: list[list[int]]
    above: list[list[int]]
    below: list[list[int]]
    chains: list[list[int]]


def layout(count: int, edges: Sequence[tuple[int, int]], sizes: Sizes | None = None) -> Layout:
    """Place `count` tasks and their (parent, child) edges; a circle raises ValueError."""
    sizes = sizes or Sizes()
    if not count:
        return Layout([], [], 2 * sizes.margin, 2 * sizes.margin)
    layers = _layered(count, edges)
    _order(layers)
    centres = _centres(layers, sizes)
    return _drawn(layers, centres, sizes)


def depths(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each task: one below the lowest it waits for.

    >>> depths(4, [(0, 1), (1, 3), (2, 3)])
    [0, 1, 0, 2]
    """
    children: list[list[int]] = [[] for _ in range(count)]
    for parent, child in edges:
        children[parent].append(child)
    order = topological_order(count, edges)
    if len(order) < count:
        raise ValueError("a graph with a circle cannot be drawn in layers")
    depth = [0] * count
    for task in order:
        for child in children[task]:
            depth[child] = max(depth[child], depth[task] + 1)
    return depth


def _layered(count: int, edges: Sequence[tuple[int, int]]) -> _Layers:
    depth = depths(count, edges)
    passing = sum(depth[child] - depth[parent] - 1 for parent, child in edges)
    bends = passing <= MOST_PASSING
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
    """Put each layer in the order with the fewest crossings that was met."""
    place = _places(layers)
    counts = len(layers.above) <= MOST_COUNTED
    fewest = _crossings(layers, place) if counts else 0
    best = [list(row) for row in layers.rows]
    for sweep in range(SWEEPS):
        if counts and not fewest:
            break
        downwards = sweep % 2 == 0
        rows = layers.rows if downwards else layers.rows[::-1]
        neighbours = layers.above if downwards else layers.below
        for row in rows:
            # Sorting is stable, so what has no preference stays where it is.
            row.sort(key=lambda one: _mean([place[other] for other in neighbours[one]], place[one]))
            for number, one in enumerate(row):
                place[one] = number
        found = _crossings(layers, place) if counts else -1
        if found < fewest:
            fewest, best = found, [list(row) for row in layers.rows]
    for row, kept in zip(layers.rows, best, strict=True):
        row[:] = kept


def _crossings(layers: _Layers, place: Sequence[int]) -> int:
    """Count the pairs of short edges that cross."""
    crossed = 0
    for row in layers.rows:
        seen: list[int] = []
        for upper in row:
            ends = sorted(place[lower] for lower in layers.below[upper])
            crossed += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return crossed


def _centres(layers: _Layers, sizes: Sizes) -> list[float]:
    """Return the middle of each place, in its order and clear of its neighbours."""

    def width(one: int) -> int:
        return sizes.width if one < layers.count else sizes.passing

    centre = [0.0] * len(layers.above)
    gaps = [
        [(width(a) + width(b)) / 2 + sizes.gap_x for a, b in pairwise(row)] for row in layers.rows
    ]
    for row, between in zip(layers.rows, gaps, strict=True):
        at = -sum(between) / 2
        for one, gap in zip(row, [*between, 0.0], strict=True):
            centre[one] = at
            at += gap
    for pull in range(PULLS):
        downwards = pull % 2 == 0
        neighbours = layers.above if downwards else layers.below
        rows = list(zip(layers.rows, gaps, strict=True))
        for row, between in rows if downwards else rows[::-1]:
            wished = [
                _mean([centre[other] for other in neighbours[one]], centre[one]) for one in row
            ]
            for one, at in zip(row, _spread(wished, between), strict=True):
                centre[one] = at
    return centre


def _spread(wished: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """Return places near the wished ones, each at least its gap from the next.

    Pushed apart to the right, and to the left, and the mean of both: it keeps the gaps as both do.
    """
    right = list(wished)
    for number, gap in enumerate(gaps):
        right[number + 1] = max(right[number + 1], right[number] + gap)
    left = list(wished)
    for number in range(len(gaps) - 1, -1, -1):
        left[number] = min(left[number], left[number + 1] - gaps[number])
    return [(a + b) / 2 for a, b in zip(left, right, strict=True)]


def _drawn(layers: _Layers, centres: Sequence[float], sizes: Sizes) -> Layout:
    half = sizes.width // 2
    leftmost = min(centre - half for centre in centres)
    # Rounding down moves everything alike, and whole gaps stay whole.
    middle = [int(centre - leftmost // 1) + sizes.margin for centre in centres]
    step = sizes.height + sizes.gap_y
    top = [0] * len(centres)
    for number, row in enumerate(layers.rows):
        for one in row:
            top[one] = sizes.margin + number * step
    boxes = [
        Box(middle[task] - half, top[task], sizes.width, sizes.height)
        for task in range(layers.count)
    ]
    ways: list[list[Point]] = []
    for chain in layers.chains:
        way: list[Point] = [(middle[chain[0]], top[chain[0]] + sizes.height)]
        for one in chain[1:-1]:
            way += [(middle[one], top[one]), (middle[one], top[one] + sizes.height)]
        way.append((middle[chain[-1]], top[chain[-1]]))
        ways.append(way)
    width = max(middle) + half + sizes.margin
    return Layout(boxes, ways, width, len(layers.rows) * step - sizes.gap_y + 2 * sizes.margin)


def _places(layers: _Layers) -> list[int]:
    place = [0] * len(layers.above)
    for row in layers.rows:
        for number, one in enumerate(row):
            place[one] = number
    return place


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
