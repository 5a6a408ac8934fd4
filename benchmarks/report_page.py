"""Writes the last results to docs/performance.md."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import goals, registry
from benchmarks.result_files import shown
from benchmarks.results import BenchmarkResultDict, FigureDict
from benchmarks.servers import ROOT

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- results begin -->", "<!-- results end -->"


def write(results: Mapping[str, BenchmarkResultDict], page: Path = PAGE) -> Path:
    """Replace the text between the two marks of the page; the rest is written by hand.

    What was not measured this time stays as it was published.
    """
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    published, _, after = rest.partition(END)
    body = "\n".join(_body(results, published))
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")
    return page


def _body(results: Mapping[str, BenchmarkResultDict], published: str) -> Iterator[str]:
    yield from ("### Goals", "")
    yield from ("| | floor | goal | reached | |", "|---|---|---|---|---|")
    rows, sections = _rows(published), _sections(published)
    for goal in goals.GOALS:
        if goal.benchmark in results or goal.text not in rows:
            yield _row(goal, goals.value_of(goal, results))
        else:
            yield rows[goal.text]
    for name in registry.all_benchmarks():
        if name in results:
            yield from _section(results[name])
        elif name in sections:
            yield from ("", sections[name])


def _rows(published: str) -> dict[str, str]:
    """Return the lines of the published goals, by their first cell."""
    lines = published.partition("\n### ")[2].partition("\n### ")[0].splitlines()
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines if line[:2] == "| "}


def _sections(published: str) -> dict[str, str]:
    """Return the published sections, by the name of their benchmark."""
    parts = re.split(r"^(?=### )", published, flags=re.MULTILINE)
    return {part.partition("\n")[0].removeprefix("### "): part.rstrip() for part in parts}


def _row(goal: goals.Goal, value: float | None) -> str:
    floor, best = goals.marks(goal)
    reached = "" if value is None else shown(value)
    return f"| {goal.text} | {floor} | {best} | {reached} | {goals.verdict(goal, value)} |"


def _section(result: BenchmarkResultDict) -> Iterator[str]:
    yield from ("", f"### {result['name']}", "", result["question"], "")
    if result["ratios"]:
        yield from ("| ratio | median of rounds | min … max |", "|---|---|---|")
        for name, value in result["ratios"].items():
            yield f"| {name} | {shown(value)} | {_spread(result['rounds'].get(name, ()))} |"
        yield ""
    yield from ("| | | median | min … max | n | fsync | other load |", "|---" * 7 + "|")
    for row in result["figures"]:
        cells = (row["who"], row["what"], _median(row), _spread(row["values"]), len(row["values"]))
        yield f"| {' | '.join(map(str, (*cells, *_machine(result, row['who']))))} |"
    yield from ("", f"Measured on {result['taken_on']} at commit {result['commit']}.")


def _machine(result: BenchmarkResultDict, who: str) -> tuple[str, str]:
    """Return the worst fsync and the highest other load during the turns of one queue."""
    probes = [probe for probe in result["probes"] if probe["who"] == who]
    if not probes:
        return "", ""
    fsync = max(probe["fsync_ms"] for probe in probes)
    foreign = max(probe["foreign_cores"] for probe in probes)
    return f"{fsync:.2g} ms", f"{foreign:.2g} cores"


def _median(row: FigureDict) -> str:
    return f"{shown(row['median'])} {row['unit']}"


def _spread(values: Sequence[float]) -> str:
    return f"{shown(min(values))} … {shown(max(values))}" if values else ""
