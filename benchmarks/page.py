"""The report for people: docs/performance.md, written from the last results."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import goals, registry
from benchmarks.arena import ROOT
from benchmarks.outcome import FigureDict, OutcomeDict
from benchmarks.sheet import machine, shown

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- results begin -->", "<!-- results end -->"
UNMEASURED = "Nothing has been measured yet: `make bench` writes the tables that stand here."


def write(results: Mapping[str, OutcomeDict], page: Path = PAGE) -> Path:
    """Put the results between the page's two marks; the words around them are people's."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    body = "\n".join(_body(results)) if results else UNMEASURED
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")
    return page


def _body(results: Mapping[str, OutcomeDict]) -> Iterator[str]:
    yield from ("### What was to be reached", "")
    yield from ("| | floor | goal | reached | |", "|---|---|---|---|---|")
    for goal in goals.GOALS:
        value = goals.value_of(goal, results)
        floor, best = goals.marks(goal)
        reached = "" if value is None else shown(value)
        yield f"| {goal.text} | {floor} | {best} | {reached} | {goals.verdict(goal, value)} |"
    for name in registry.found():
        if name in results:
            yield from _section(results[name])


def _section(result: OutcomeDict) -> Iterator[str]:
    yield from ("", f"### {result['name']}", "", result["question"], "")
    if result["ratios"]:
        yield from ("| ratio | |", "|---|---|")
        for name, value in result["ratios"].items():
            yield f"| {name} | {shown(value)} |"
        yield ""
    yield from ("| | | median | least … most |", "|---|---|---|---|")
    for row in result["figures"]:
        yield f"| {row['who']} | {row['what']} | {_median(row)} | {_spread(row)} |"
    yield from ("", *(line.strip().capitalize() + "." for line in machine(result)))


def _median(row: FigureDict) -> str:
    return f"{shown(row['median'])} {row['unit']}"


def _spread(row: FigureDict) -> str:
    return f"{shown(min(row['values']))} … {shown(max(row['values']))}"
