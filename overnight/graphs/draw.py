"""A graph as a picture: SVG of our own making, or text for Graphviz, Mermaid and terminals.

What a task is called is its author's word, and none of it may become markup: each form escapes all
of it in its own way.
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
LONGEST_LABEL = 24
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
# Fill, line and dashes: colour only repeats what symbol and word say.
LOOKS: Mapping[str, tuple[str, str, str]] = {
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
PLAIN = ("#ffffff", "#8c959f", "2 3")
DASHES = {"success": "", "finished": "8 4", "failure": "2 4"}
WORDS = {"finished": "in any case", "failure": "if it failed"}
# What XML 1.0 cannot hold, not even escaped.
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}"
    ".state{font-size:12px;fill:#424a53}.when{font-size:11px;fill:#424a53}"
    ".edge{fill:none;stroke:#6e7781;stroke-width:1.5}.critical{stroke-width:3}"
)
NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    ' orient="auto"><path d="M0 0L8 4L0 8z" fill="#6e7781"/></marker>'
)


def draw(dag: Dag, form: Format) -> str:
    """Return a graph in one of the forms; the same graph gives the same text."""
    return FORMS[form](dag)


def symbol(state: str) -> str:
    """Return the sign of a state, for where colour cannot be seen."""
    return SYMBOLS.get(state, WAITING)


def svg(dag: Dag) -> str:
    """Draw a graph as SVG that needs nothing from elsewhere and that a screen reader can read."""
    picture = layout(len(dag.tasks), _pairs(dag))
    critical = _critical(dag)
    size = (picture.width, picture.height)
    extent = 'width="{0}" height="{1}" viewBox="0 0 {0} {1}"'.format(*size)
    lines = [
        f'<svg {NAMESPACE} role="img" aria-labelledby="title desc" {extent}>',
        f'<title id="title">{_xml(dag.title)}</title>',
        f'<desc id="desc">{_xml(_described(dag))}</desc>',
        f"<style>{STYLE}</style>",
        f"<defs>{TIP}</defs>",
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
    """Write a graph for Graphviz."""
    number = _numbers(dag)
    critical = _critical(dag)
    lines = [
        "digraph dag {",
        f"  label={_dot(dag.title)};",
        '  node [shape=box, style="rounded,filled", fontname="sans-serif"];',
    ]
    for task in dag.tasks:
        fill, line, dashes = LOOKS.get(task.state, PLAIN)
        style = "rounded,filled,dashed" if dashes else "rounded,filled"
        width = 3 if task.id in critical else 1
        lines.append(
            f"  n{number[task.id]} [label={_dot(_two_lines(task))}, fillcolor={_dot(fill)},"
            f" color={_dot(line)}, style={_dot(style)}, penwidth={width}];"
        )
    for edge in dag.edges:
        if edge.parent in number and edge.child in number:
            word = WORDS.get(edge.condition)
            look = f" [style=dashed, label={_dot(word)}]" if word else ""
            lines.append(f"  n{number[edge.parent]} -> n{number[edge.child]}{look};")
    return "\n".join([*lines, "}"]) + "\n"


def mermaid(dag: Dag) -> str:
    """Write a graph for Mermaid, as in a Markdown file."""
    number = _numbers(dag)
    lines = ["flowchart TD"]
    for task in dag.tasks:
        name, state = _mermaid(task.label), _mermaid(_standing(task))
        lines.append(f'  n{number[task.id]}["{name}<br/>{state}"]:::{task.state}')
    for edge in dag.edges:
        if edge.parent in number and edge.child in number:
            word = WORDS.get(edge.condition)
            arrow = f"-. {word} .->" if word else "-->"
            lines.append(f"  n{number[edge.parent]} {arrow} n{number[edge.child]}")
    for state in sorted({task.state for task in dag.tasks}):
        fill, line, dashes = LOOKS.get(state, PLAIN)
        dashed = f",stroke-dasharray:{dashes}" if dashes else ""
        lines.append(f"  classDef {state} fill:{fill},stroke:{line},color:#1f2328{dashed}")
    return "\n".join(lines) + "\n"


def ascii_(dag: Dag) -> str:
    """Write a graph as a tree of lines for any terminal; further parents are named at the end."""
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
    known = [edge for edge in dag.edges if edge.parent in number and edge.child in number]
    drawn = []
    for edge, way in zip(known, picture.ways, strict=True):
        dashes = DASHES[edge.condition]
        thick = " critical" if edge.parent in critical and edge.child in critical else ""
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        drawn.append(
            f'<path class="edge{thick}" d="{_curve(way)}"{dashed} marker-end="url(#tip)"/>'
        )
        word = WORDS.get(edge.condition)
        if word:
            (x, y), (to_x, to_y) = way[-2], way[-1]
            middle = f'x="{(x + to_x) // 2 + 6}" y="{(y + to_y) // 2}"'
            drawn.append(f'<text class="when" {middle}>{word}</text>')
    return drawn


def _box(task: DagTaskState, picture: Layout, number: int, *, is_critical: bool) -> str:
    box = picture.boxes[number]
    fill, line, dashes = LOOKS.get(task.state, PLAIN)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    thick = 3 if is_critical else 1
    centre = box.x + box.width // 2
    said = f"{task.label}: {task.title}, {_standing(task)}"
    return (
        f'<g><title>{_xml(said)}</title><rect x="{box.x}" y="{box.y}" width="{box.width}"'
        f' height="{box.height}" rx="8" fill="{fill}" stroke="{line}" stroke-width="{thick}"'
        f'{dashed}/><text x="{centre}" y="{box.y + 23}" text-anchor="middle">'
        f"{_xml(shortened(task.label, LONGEST_LABEL))}</text>"
        f'<text class="state" x="{centre}" y="{box.y + 42}" text-anchor="middle">'
        f"{symbol(task.state)} {_xml(_standing(task))}</text></g>"
    )


def _curve(way: list[Point]) -> str:
    (x, y), *rest = way
    parts = [f"M{x} {y}"]
    for to_x, to_y in rest:
        middle = (y + to_y) // 2
        straight = x == to_x
        parts.append(
            f"L{to_x} {to_y}" if straight else f"C{x} {middle} {to_x} {middle} {to_x} {to_y}"
        )
        x, y = to_x, to_y
    return "".join(parts)


def _described(dag: Dag) -> str:
    counts = dag.counts
    return (
        f"A graph of {len(dag.tasks)} tasks, drawn from top to bottom; it is {dag.status}."
        f" {counts.completed} completed, {counts.open} open, {counts.failed} failed,"
        f" {counts.cancelled} cancelled. Thick lines mark the longest chain."
    )


def _standing(task: DagTaskState) -> str:
    return task.state.replace("_", " ")


def _two_lines(task: DagTaskState) -> str:
    return f"{task.label}\n{symbol(task.state)} {_standing(task)}"


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
    """Return the ids along the longest chain; one task alone is no chain worth marking."""
    named = set(dag.critical_path.tasks) if dag.critical_path else set()
    chain = {task.id for task in dag.tasks if (task.name or task.id) in named}
    return chain if len(chain) > 1 else set()


def shortened(text: str, longest: int) -> str:
    """Cut a text to a width; signs that are twice as wide count twice.

    >>> shortened("a long name", 6)
    'a lon…'
    """
    room, kept = longest, ""
    for number, sign in enumerate(text):
        wide = 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        is_last = number == len(text) - 1
        # Unless this is the last sign, one more must fit: the dots.
        if wide > room - (0 if is_last else 1):
            return f"{kept}…"
        room -= wide
        kept += sign
    return text


def _xml(text: str) -> str:
    return escape(NOT_XML.sub("\ufffd", text))


def _dot(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "\\n")
    return f'"{_printable(escaped)}"'


def _mermaid(text: str) -> str:
    """Write every sign that is neither letter, digit nor blank by its number."""
    return "".join(
        sign if sign.isalnum() or sign == " " else f"#{ord(sign)};" for sign in _printable(text)
    )


def _printable(text: str) -> str:
    return "".join(
        "\ufffd" if unicodedata.category(sign) in {"Cc", "Cf", "Cs", "Zl", "Zp"} else sign
        for sign in text
    )
