"""The drawing of a graph: a box for each task from top to bottom, and the deciding chain in bold.

A large graph is drawn around one task; the list beside the drawing has all tasks.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup

from overnight.graphs.layout import Point, Sizes, layout
from overnight.models.dags import Dag, DagEdgeState, DagTaskState
from overnight_server.dashboard.clocks import Clock, lasting
from overnight_server.dashboard.render import safe_text
from overnight_server.dashboard.words import ASKS, WORDS
from overnight_server.domain.lifecycle import ACTIVE, FINAL, State

SIZES = Sizes(width=236, height=50, gap_x=20, gap_y=34, margin=6)
#: More tasks than that are not drawn, but those around one task.
MOST_DRAWN = 200
MOST_AROUND = 60
STEPS = 3
#: Above this number of tasks, like siblings are drawn as one box.
MOST_UNFOLDED = 30
#: Letters that fit into a box.
MOST_LETTERS = 27
MOST_SMALL_LETTERS = 34


@dataclass(frozen=True)
class Drawing:
    """A drawing, how many tasks it shows, whether that is all, and whether siblings are folded."""

    svg: Markup
    drawn: int
    is_whole: bool
    is_folded: bool


@dataclass(frozen=True)
class Node:
    """A box of the drawing: one task, or several of one type with the same parents and children."""

    tasks: Sequence[DagTaskState]

    @property
    def first(self) -> DagTaskState:
        """The task that is meant if it is only one."""
        return self.tasks[0]

    @property
    def state(self) -> str:
        """The state that asks most for attention."""
        states = {_shown_state(task) for task in self.tasks}
        return next(state for state in ATTENTION if state in states)


def _shown_state(task: DagTaskState) -> str:
    return ASKS if task.wait_reason == "approval" else task.state


#: The states of the tasks of one box, from the one that it shows first.
ATTENTION = (
    State.FAILED.value,
    State.DEAD_LETTERED.value,
    ASKS,
    State.RUNNING.value,
    State.VALIDATING.value,
    State.CLAIMED.value,
    State.RETRYING.value,
    State.READY.value,
    State.PENDING.value,
    State.CREATED.value,
    State.CANCELLED.value,
    State.COMPLETED.value,
)


def fold_siblings(dag: Dag, picked: str = "") -> list[Node]:
    """Return the boxes of a graph: like siblings become one, but the picked task stays alone."""
    if len(dag.tasks) <= MOST_UNFOLDED:
        return [Node([task]) for task in dag.tasks]
    parents: dict[str, set[tuple[str, str]]] = defaultdict(set)
    children: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for edge in dag.edges:
        parents[edge.child].add((edge.parent, edge.condition))
        children[edge.parent].add((edge.child, edge.condition))
    alike: dict[tuple[object, ...], list[DagTaskState]] = defaultdict(list)
    for task in dag.tasks:
        own = task.id if task.id == picked else ""
        key = (task.type, frozenset(parents[task.id]), frozenset(children[task.id]), own)
        alike[key].append(task)
    return [Node(tasks) for tasks in alike.values()]


def chain_of(dag: Dag) -> list[DagTaskState]:
    """Return the tasks of the longest chain, in order."""
    if dag.critical_path is None:
        return []
    known = {task.name or task.id: task for task in dag.tasks}
    return [known[name] for name in dag.critical_path.tasks if name in known]


def draw_graph(dag: Dag, clock: Clock, picked: str = "") -> Drawing:
    """Draw a graph; a large one around the picked task, or around the first that is open."""
    nodes = fold_siblings(dag, picked)
    if len(nodes) > MOST_DRAWN:
        nodes = [Node([task]) for task in _around(dag, picked)]
    number = {task.id: place for place, node in enumerate(nodes) for task in node.tasks}
    links = set(pairwise(task.id for task in chain_of(dag)))
    edges: dict[tuple[int, int], list[DagEdgeState]] = defaultdict(list)
    for edge in dag.edges:
        if edge.parent in number and edge.child in number:
            edges[number[edge.parent], number[edge.child]].append(edge)
    picture = layout(len(nodes), list(edges), SIZES)
    parents = _open_parents(dag)
    lines = [
        _edge(path, found, links) for path, found in zip(picture.paths, edges.values(), strict=True)
    ]
    boxes = [
        _box(
            node, BoxCorner(box.x, box.y), _facts(node, clock, parents), _address(dag, node), picked
        )
        for node, box in zip(nodes, picture.boxes, strict=True)
    ]
    label = f"{len(number)} tasks and what waits for what; the list says the same"
    svg = Markup(
        '<svg width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="group" aria-label="{2}">'
        "{3}{4}</svg>"
    ).format(picture.width, picture.height, label, Markup().join(lines), Markup().join(boxes))
    return Drawing(svg, len(number), len(number) == len(dag.tasks), len(nodes) < len(number))


def _around(dag: Dag, picked: str) -> list[DagTaskState]:
    """Return the tasks at most a few steps away from one."""
    near: dict[str, set[str]] = {}
    for edge in dag.edges:
        near.setdefault(edge.parent, set()).add(edge.child)
        near.setdefault(edge.child, set()).add(edge.parent)
    known = {task.id for task in dag.tasks}
    first = next((task.id for task in dag.tasks if State(task.state) not in FINAL), dag.tasks[0].id)
    chosen = {picked if picked in known else first}
    frontier = set(chosen)
    for _ in range(STEPS):
        frontier = {other for one in sorted(frontier) for other in near.get(one, ())} - chosen
        chosen |= set(sorted(frontier)[: max(0, MOST_AROUND - len(chosen))])
    return [task for task in dag.tasks if task.id in chosen]


def _open_parents(dag: Dag) -> Mapping[str, str]:
    """Return the title of the first task that each task still waits for."""
    titles = {task.id: task.title for task in dag.tasks}
    found: dict[str, str] = {}
    for edge in dag.edges:
        if not edge.satisfied and edge.parent in titles:
            found.setdefault(edge.child, titles[edge.parent])
    return found


def _edge(
    path: Sequence[Point], edges: Sequence[DagEdgeState], links: set[tuple[str, str]]
) -> Markup:
    """Draw the line between two boxes, which may stand for several edges."""
    is_critical = any((edge.parent, edge.child) in links for edge in edges)
    is_met = all(edge.satisfied for edge in edges)
    kind = "critical" if is_critical else "met" if is_met else ""
    loose = " loose" if edges[0].condition != "success" else ""
    head = "crit" if is_critical else "met" if is_met else "wait"
    return Markup('<path class="edge {}{}" d="{}" marker-end="url(#a-{})"/>').format(
        kind, loose, _way(path), head
    )


def _way(points: Sequence[Point]) -> str:
    """Return a line that is smooth between boxes, and straight past a box."""
    (x, y), *rest = points
    path = f"M{x} {y}"
    for number, (to_x, to_y) in enumerate(rest):
        if number % 2 == 0:
            bend = (to_y - y) / 2
            path += f"C{x} {y + bend:g} {to_x} {to_y - bend:g} {to_x} {to_y}"
        else:
            path += f"V{to_y}"
        x, y = to_x, to_y
    return path


class BoxCorner(NamedTuple):
    """The upper left corner of a box."""

    x: int
    y: int


def _address(dag: Dag, node: Node) -> str:
    """Return the page of a task, or the list of those that were folded."""
    if len(node.tasks) == 1:
        return f"/tasks/{node.first.id}"
    kind = node.first.type.replace('"', "")
    return "/tasks?" + urlencode({"q": f'graph:{dag.id} type:"{kind}"'})


def _facts(node: Node, clock: Clock, parents: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the title of a box, its one fact, and what a screen reader says of it."""
    if len(node.tasks) == 1:
        task = node.first
        label = f"{safe_text(task.title, 200)}: {WORDS[node.state]}"
        return task.title, _fact(task, clock, parents.get(task.id, "")), label
    title = f"{len(node.tasks)} tasks, {safe_text(node.first.type, 60)}"
    numbers = Counter(WORDS[_shown_state(task)] for task in node.tasks)
    fact = " · ".join(f"{number} {word}" for word, number in numbers.most_common())
    return title, fact, f"{title}: {fact}"


def _box(
    node: Node, at: BoxCorner, facts: tuple[str, str, str], address: str, picked: str
) -> Markup:
    title, fact, label = facts
    rect = Markup('<rect class="box" width="{}" height="{}" rx="6"/>').format(
        SIZES.width, SIZES.height
    )
    behind = Markup('<rect class="box" x="4" y="4" width="{}" height="{}" rx="6"/>').format(
        SIZES.width, SIZES.height
    )
    return Markup(
        '<a href="{address}" aria-label="{label}"><g class="node {state}{picked}" '
        'transform="translate({x} {y})"><title>{label}</title>{boxes}'
        '<svg class="ic" x="11" y="10" width="14" height="14"><use href="#s-{state}"/></svg>'
        '<text x="34" y="21">{title}</text><text class="sub" x="34" y="39">{fact}</text></g></a>'
    ).format(
        address=address,
        label=label,
        state=node.state,
        picked=" picked" if node.first.id == picked else "",
        x=at.x,
        y=at.y,
        boxes=rect if len(node.tasks) == 1 else behind + rect,
        title=_cut(title, MOST_LETTERS),
        fact=_cut(fact, MOST_SMALL_LETTERS),
    )


def _fact(task: DagTaskState, clock: Clock, parent: str) -> str:
    """Return the one fact of a task: when and how long it ran, or what it waits for."""
    state = State(task.state)
    if state in ACTIVE:
        progress = (task.progress or {}).get("percent")
        more = f" · {progress:.0f} %" if isinstance(progress, int | float) else ""
        since = "" if task.started_at is None else f"since {clock.text(task.started_at)}"
        return f"runs {since}{more}"
    if state in FINAL and task.started_at is not None:
        runs = f" · {task.attempts} runs" if task.attempts > 1 else ""
        return f"{clock.text(task.started_at)} · {lasting(task.run_seconds)}{runs}"
    if state in FINAL:
        return WORDS[state]
    return f"waits for {parent}" if parent else "waits"


def _cut(text: str, most: int) -> str:
    clean = safe_text(text, 200)
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"
