"""A small bar chart as SVG, which needs no library."""

from html import escape
from math import log10

from benchmarks.results import BenchmarkResultDict, FigureDict

WIDTH, ROW, LEFT, RIGHT, TOP = 760, 22, 300, 130, 34
OURS, THEIRS = "#2b6cb0", "#a0aec0"
#: Beyond this a plain scale would leave the small bars invisible.
WIDE = 50
PLAIN_FROM = 1000
CAVEAT = ": ratios matter; absolute figures are this machine's"
FACE = "font-family='ui-sans-serif, system-ui, sans-serif' font-size='12'"


def bars(result: BenchmarkResultDict) -> str:
    """Draw one bar per figure; the scale is logarithmic where figures lie far apart."""
    rows = [row for row in result["figures"] if row["median"] > 0]
    values = [row["median"] for row in rows]
    height = TOP + ROW * len(rows) + 10
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' {FACE}>",
        "<rect width='100%' height='100%' fill='white'/>",
        f"<text x='10' y='20' font-weight='bold'>{escape(result['name'])}{CAVEAT}</text>",
    ]
    parts += [
        _bar(row, value, _share(value, values), TOP + ROW * servers)
        for servers, (row, value) in enumerate(zip(rows, values, strict=True))
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(row: FigureDict, value: float, share: float, y: float) -> str:
    who, what, unit = (escape(str(row[key])) for key in ("who", "what", "unit"))
    length = max(2.0, share * (WIDTH - LEFT - RIGHT))
    shown = f"{value:,.0f}" if value >= PLAIN_FROM else f"{value:.3g}"
    colour = OURS if who.startswith("overnight") else THEIRS
    return (
        f"<text x='{LEFT - 8}' y='{y + 13}' text-anchor='end'>{who}: {what}</text>"
        f"<rect x='{LEFT}' y='{y}' width='{length:.1f}' height='{ROW - 6}' fill='{colour}'/>"
        f"<text x='{LEFT + length + 6:.1f}' y='{y + 13}'>{shown} {unit}</text>"
    )


def _share(value: float, values: list[float]) -> float:
    least, most = min(values), max(values)
    if most / least < WIDE:
        return value / most
    # One decade below the least, so that it still has a bar.
    return (log10(value) - log10(least) + 1) / (log10(most) - log10(least) + 1)
