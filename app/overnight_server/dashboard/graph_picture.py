"""The drawing of a graph: a box for each task from top to bottom, and the deciding chain in bold.

A large graph is drawn around one task; the list beside the drawing has all tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from overnight.graphs.layout import Point, Sizes, layout
from overnight.models.dags import Dag, DagTaskState
from overnight_server.dashboard.clocks import Clock, lasting
from overnight_server.dashboard.render import safe_text
from overnight_server.dashboard.words import ASKS, WORDS
from overnight_server.domain.lifecycle import ACTIVE, FINAL, State

SIZES = Sizes(width=236, height=50, gap_x=20, gap_y=34, margin=6)
#: More tasks than that are not drawn, but those around one task.
MOST_DRAWN = 200
MOST_AROUND = 60
STEPS = 3
#: Letters that fit into a box.
MOST_LETTERS = 27
MOST_SMALL_LETTERS = 34


@dataclass(frozen=True)
class Drawing:
    """A drawing, how many tasks it shows, and whether that is all of them."""

    svg: Markup
    drawn: int
    is_whole: bool


def chain_of(dag: Dag) -> list[DagTaskState]:
    """Return the tasks of the longest chain, in order."""
    if dag.critical_path is None:
        return []
    known = {task.name or task.id: task for task in dag.tasks}
    return [known[name] for name in dag.critical_path.tasks if name in known]


def draw_graph(dag: Dag, clock: Clock, picked: str = "") -> Drawing:
    """Draw a graph; a large one around the picked task, or around the first that is open."""
    tasks = dag.tasks if len(dag.tasks) <= MOST_DRAWN else _around(dag, picked)
    number = {task.id: place for place, task in enumerate(tasks)}
    edges = [edge for edge in dag.edges if edge.parent in number and edge.child in number]
    picture = layout(
        len(tasks), [(number[edge.parent], number[edge.child]) for edge in edges], SIZES
    )
    chain = [task.id for task in chain_of(dag)]
    links = set(pairwise(chain))
    parents = _open_parents(dag)
    lines = [
        _edge(path, edge.satisfied, (edge.parent, edge.child) in links, edge.condition)
        for edge, path in zip(edges, picture.paths, strict=True)
    ]
    boxes = [
        _box(task, box.x, box.y, clock, parents.get(task.id, ""), is_picked=task.id == picked)
        for task, box in zip(tasks, picture.boxes, strict=True)
    ]
    label = f"{len(tasks)} tasks and what waits for what; the list says the same"
    svg = Markup(
        '<svg width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="group" aria-label="{2}">'
        "{3}{4}</svg>"
    ).format(picture.width, picture.height, label, Markup().join(lines), Markup().join(boxes))
    return Drawing(svg, len(tasks), len(tasks) == len(dag.tasks))


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


def _edge(path: Sequence[Point], is_met: bool, is_critical: bool, condition: str) -> Markup:  # noqa: FBT001 - positions of one line
    kind = "critical" if is_critical else "met" if is_met else ""
    loose = " loose" if condition != "success" else ""
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


def _box(
    task: DagTaskState, x: int, y: int, clock: Clock, parent: str, *, is_picked: bool
) -> Markup:
    state = ASKS if task.wait_reason == "approval" else task.state
    label = f"{safe_text(task.title, 200)}: {WORDS[state]}"
    picked = " picked" if is_picked else ""
    return Markup(
        '<a href="/tasks/{id}" aria-label="{label}"><g class="node {state}{picked}" '
        'transform="translate({x} {y})"><title>{label}</title>'
        '<rect class="box" width="{width}" height="{height}" rx="6"/>'
        '<svg class="ic" x="11" y="10" width="14" height="14"><use href="#s-{state}"/></svg>'
        '<text x="34" y="21">{title}</text><text class="sub" x="34" y="39">{fact}</text></g></a>'
    ).format(
        id=task.id,
        label=label,
        state=state,
        picked=picked,
        x=x,
        y=y,
        width=SIZES.width,
        height=SIZES.height,
        title=_cut(task.title, MOST_LETTERS),
        fact=_cut(_fact(task, clock, parent), MOST_SMALL_LETTERS),
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
