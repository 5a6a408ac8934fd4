"""Draw a graph as SVG, or as text for Graphviz, Mermaid and terminals.

Names and titles come from users and must not become markup: each format escapes them.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from html import escape
from typing import Literal

from overnight.graphs.layout import Layout, Point, layout
from overnight.graphs.outline import ASCII, outline
from overnight.models.dags import Dag, DagTaskState

Format = Literal["svg", "dot", "mermaid", "ascii"]
MAX_LABEL_WIDTH = 24
SYMBOLS = {
    "completed": "✓",
    "running": "▶",
    "validating": "▶",
    "claimed": "▷",
    "ready": "○",
    "retrying": "↻",
    "dead_lettered": "✗",
    "failed": "✗",
    "cancelled": "⊘",
}
WAITING = "…"
# Fill, line and dashes. Colour is never the only sign: symbol and text say the same.
STYLES: Mapping[str, tuple[str, str, str]] = {
    "completed": ("#d7f0dd", "#1a7f37", ""),
    "running": ("#d3e8ff", "#0969da", ""),
    "validating": ("#d3e8ff", "#0969da", ""),
    "claimed": ("#e6f1fd", "#0969da", ""),
    "ready": ("#ffffff", "#57606a", ""),
    "retrying": ("#fff3c4", "#9a6700", ""),
    "dead_lettered": ("#ffdedb", "#cf222e", ""),
    "failed": ("#ffdedb", "#cf222e", ""),
    "cancelled": ("#eaeef2", "#57606a", "6 3"),
}
DEFAULT_STYLE = ("#ffffff", "#8c959f", "2 3")
DASHES = {"success": "", "finished": "8 4", "failure": "2 4"}
CONDITION_LABELS = {"finished": "in any case", "failure": "if it failed"}
# Characters that XML 1.0 cannot hold, not even escaped.
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
CSS = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}"
    ".state{font-size:12px;fill:#424a53}.when{font-size:11px;fill:#424a53}"
    ".edge{fill:none;stroke:#6e7781;stroke-width:1.5}.critical{stroke-width:3}"
)
NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
ARROW_TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    ' orient="auto"><path d="M0 0L8 4L0 8z" fill="#6e7781"/></marker>'
)


def draw(dag: Dag, form: Format) -> str:
    """Return a graph in one of the formats; the same graph always gives the same text."""
    return FORMS[form](dag)


def symbol(state: str) -> str:
    """Return the symbol of a state."""
    return SYMBOLS.get(state, WAITING)


def svg(dag: Dag) -> str:
    """Return a graph as a self-contained SVG that a screen reader can read."""
    picture = layout(len(dag.tasks), _pairs(dag))
    critical = _critical(dag)
    size = (picture.width, picture.height)
    extent = 'width="{0}" height="{1}" viewBox="0 0 {0} {1}"'.format(*size)
    lines = [
        f'<svg {NAMESPACE} role="img" aria-labelledby="title desc" {extent}>',
        f'<title id="title">{_xml(dag.title)}</title>',
        f'<desc id="desc">{_xml(_description(dag))}</desc>',
        f"<style>{CSS}</style>",
        f"<defs>{ARROW_TIP}</defs>",
        f'<rect width="{picture.width}" height="{picture.height}" fill="#ffffff"/>',
        *_edges(dag, picture, critical),
        *(
            _box(task, picture, number, is_critical=task.id in critical)
            for number, task in enumerate(dag.tasks)
        ),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def dot(dag: Dag) -> str:
    """Return a graph in the language of Graphviz."""
    number = _numbers(dag)
    critical = _critical(dag)
    lines = [
        "digraph dag {",
        f"  label={_dot(dag.title)};",
        '  node [shape=box, style="rounded,filled", fontname="sans-serif"];',
    ]
    for task in dag.tasks:
        fill, line, dashes = STYLES.get(task.state, DEFAULT_STYLE)
        style = "rounded,filled,dashed" if dashes else "rounded,filled"
        width = 3 if task.id in critical else 1
        lines.append(
            f"  n{number[task.id]} [label={_dot(_two_lines(task))}, fillcolor={_dot(fill)},"
            f" color={_dot(line)}, style={_dot(style)}, penwidth={width}];"
        )
    for edge in dag.edges:
        if edge.parent in number and edge.child in number:
            label = CONDITION_LABELS.get(edge.condition)
            style = f" [style=dashed, label={_dot(label)}]" if label else ""
            lines.append(f"  n{number[edge.parent]} -> n{number[edge.child]}{style};")
    return "\n".join([*lines, "}"]) + "\n"


def mermaid(dag: Dag) -> str:
    """Return a graph in the language of Mermaid, as used in Markdown files."""
    number = _numbers(dag)
    lines = ["flowchart TD"]
    for task in dag.tasks:
        name, state = _mermaid(task.label), _mermaid(_state_text(task))
        lines.append(f'  n{number[task.id]}["{name}<br/>{state}"]:::{task.state}')
    for edge in dag.edges:
        if edge.parent in number and edge.child in number:
            label = CONDITION_LABELS.get(edge.condition)
            arrow = f"-. {label} .->" if label else "-->"
            lines.append(f"  n{number[edge.parent]} {arrow} n{number[edge.child]}")
    for state in sorted({task.state for task in dag.tasks}):
        fill, line, dashes = STYLES.get(state, DEFAULT_STYLE)
        dashed = f",stroke-dasharray:{dashes}" if dashes else ""
        lines.append(f"  classDef {state} fill:{fill},stroke:{line},color:#1f2328{dashed}")
    return "\n".join(lines) + "\n"


def ascii_(dag: Dag) -> str:
    """Return a graph as a tree of ASCII lines.

    A task with several parents appears once, below one of them; its line ends with the names of the
    other parents.
    """
    lines = [_printable(dag.title)]
    for line in outline(dag, ASCII):
        also = f" (also after {', '.join(line.also_after)})" if line.also_after else ""
        text = f"{line.branch}{line.task.label} [{line.task.state.replace('_', ' ')}]{also}"
        lines.append(_printable(text))
    return "\n".join(lines) + "\n"


FORMS: Mapping[str, Callable[[Dag], str]] = {
    "svg": svg,
    "dot": dot,
    "mermaid": mermaid,
    "ascii": ascii_,
}


def _edges(dag: Dag, picture: Layout, critical: set[str]) -> list[str]:
    number = _numbers(dag)
    edges = [edge for edge in dag.edges if edge.parent in number and edge.child in number]
    drawn = []
    for edge, path in zip(edges, picture.paths, strict=True):
        dashes = DASHES[edge.condition]
        thick = " critical" if edge.parent in critical and edge.child in critical else ""
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        drawn.append(
            f'<path class="edge{thick}" d="{_curve(path)}"{dashed} marker-end="url(#tip)"/>'
        )
        label = CONDITION_LABELS.get(edge.condition)
        if label:
            (x, y), (to_x, to_y) = path[-2], path[-1]
            middle = f'x="{(x + to_x) // 2 + 6}" y="{(y + to_y) // 2}"'
            drawn.append(f'<text class="when" {middle}>{label}</text>')
    return drawn


def _box(task: DagTaskState, picture: Layout, number: int, *, is_critical: bool) -> str:
    box = picture.boxes[number]
    fill, line, dashes = STYLES.get(task.state, DEFAULT_STYLE)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    thick = 3 if is_critical else 1
    centre = box.x + box.width // 2
    tooltip = f"{task.label}: {task.title}, {_state_text(task)}"
    return (
        f'<g><title>{_xml(tooltip)}</title><rect x="{box.x}" y="{box.y}" width="{box.width}"'
        f' height="{box.height}" rx="8" fill="{fill}" stroke="{line}" stroke-width="{thick}"'
        f'{dashed}/><text x="{centre}" y="{box.y + 23}" text-anchor="middle">'
        f"{_xml(shortened(task.label, MAX_LABEL_WIDTH))}</text>"
        f'<text class="state" x="{centre}" y="{box.y + 42}" text-anchor="middle">'
        f"{symbol(task.state)} {_xml(_state_text(task))}</text></g>"
    )


def _curve(path: list[Point]) -> str:
    (x, y), *rest = path
    parts = [f"M{x} {y}"]
    for to_x, to_y in rest:
        middle = (y + to_y) // 2
        straight = x == to_x
        parts.append(
            f"L{to_x} {to_y}" if straight else f"C{x} {middle} {to_x} {middle} {to_x} {to_y}"
        )
        x, y = to_x, to_y
    return "".join(parts)


def _description(dag: Dag) -> str:
    counts = dag.counts
    return (
        f"A graph of {len(dag.tasks)} tasks, drawn from top to bottom; it is {dag.status}."
        f" {counts.completed} completed, {counts.open} open, {counts.failed} failed,"
        f" {counts.cancelled} cancelled. Thick lines mark the longest chain."
    )


def _state_text(task: DagTaskState) -> str:
    return task.state.replace("_", " ")


def _two_lines(task: DagTaskState) -> str:
    return f"{task.label}\n{symbol(task.state)} {_state_text(task)}"


def _numbers(dag: Dag) -> dict[str, int]:
    return {task.id: number for number, task in enumerate(dag.tasks)}


def _pairs(dag: Dag) -> list[tuple[int, int]]:
    number = _numbers(dag)
    return [
        (number[edge.parent], number[edge.child])
        for edge in dag.edges
        if edge.parent in number and edge.child in number
    ]


def _critical(dag: Dag) -> set[str]:
    """Return the ids of the longest chain; empty if it has only one task."""
    names = set(dag.critical_path.tasks) if dag.critical_path else set()
    chain = {task.id for task in dag.tasks if (task.name or task.id) in names}
    return chain if len(chain) > 1 else set()


def shortened(text: str, max_width: int) -> str:
    """Cut a text to a width; a wide East Asian character counts twice.

    >>> shortened("a long name", 6)
    'a lon…'
    """
    room, kept = max_width, ""
    for number, character in enumerate(text):
        width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        is_last = number == len(text) - 1
        # After every character but the last, the ellipsis must still fit.
        if width > room - (0 if is_last else 1):
            return f"{kept}…"
        room -= width
        kept += character
    return text


def _xml(text: str) -> str:
    return escape(NOT_XML.sub("\ufffd", text))


def _dot(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "\\n")
    return f'"{_printable(escaped)}"'


def _mermaid(text: str) -> str:
    """Return the text with every character except letters, digits and spaces as its number."""
    return "".join(
        character if character.isalnum() or character == " " else f"#{ord(character)};"
        for character in _printable(text)
    )


def _printable(text: str) -> str:
    return "".join(
        "\ufffd" if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"} else character
        for character in text
    )
