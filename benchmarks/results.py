"""The result of a benchmark: figures, the ratios between them, and the state of the machine."""

import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypedDict

from benchmarks.options import Kind
from benchmarks.probes import Probe, ProbeDict

Better = Literal["more", "less"]


class FigureDict(TypedDict):
    """A figure as it stands in a results file."""

    who: str
    what: str
    unit: str
    better: Better
    median: float
    values: list[float]


class BenchmarkResultDict(TypedDict):
    """A result as it stands in a file."""

    name: str
    question: str
    kind: Kind
    commit: str
    taken_on: str
    figures: list[FigureDict]
    ratios: dict[str, float]
    rounds: dict[str, list[float]]
    probes: list[ProbeDict]
    notes: list[str]


@dataclass(frozen=True)
class Figure:
    """One measured quantity of one queue, with a value for each round."""

    who: str
    what: str
    unit: str
    values: Sequence[float]
    better: Better = "more"

    @property
    def median(self) -> float:
        """The median over all rounds."""
        return statistics.median(self.values)

    def as_row(self) -> FigureDict:
        """Return the form for the results file."""
        return {
            "who": self.who,
            "what": self.what,
            "unit": self.unit,
            "better": self.better,
            "median": rounded(self.median),
            "values": [rounded(value) for value in self.values],
        }


@dataclass
class BenchmarkResult:
    """All figures and ratios of one benchmark; only ratios can be compared between machines."""

    figures: list[Figure] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)
    rounds: dict[str, list[float]] = field(default_factory=dict)
    probes: list[Probe] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def figure(
        self,
        who: str,
        what: str,
        unit: str,
        values: Sequence[float],
        better: Better = "more",
    ) -> Figure:
        """Add a figure."""
        figure = Figure(who, what, unit, list(values), better)
        self.figures.append(figure)
        return figure

    def ratio(self, name: str, ours: Sequence[float], theirs: Sequence[float]) -> None:
        """Add a ratio, round by round if rounds are pairs, so that a slow minute cancels out."""
        if len(ours) == len(theirs):
            each = [one / other for one, other in zip(ours, theirs, strict=True)]
            self.ratios[name] = statistics.median(each)
            self.rounds[name] = each
        else:
            self.ratios[name] = statistics.median(ours) / statistics.median(theirs)

    def as_dict(self, name: str, question: str, kind: Kind = "full") -> BenchmarkResultDict:
        """Return the form for the results file."""
        return {
            "name": name,
            "question": question,
            "kind": kind,
            "commit": _commit(),
            "taken_on": datetime.now(UTC).date().isoformat(),
            "ratios": {key: rounded(value) for key, value in self.ratios.items()},
            "rounds": {key: [rounded(one) for one in each] for key, each in self.rounds.items()},
            "figures": [figure.as_row() for figure in self.figures],
            "probes": [probe.as_row() for probe in self.probes],
            "notes": self.notes,
        }


def _commit() -> str:
    """Return the commit that was measured, marked if the tree differs from it."""
    options = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    log_tail = subprocess.run(options, capture_output=True, text=True, check=False)
    return log_tail.stdout.strip() or "unknown"


def rounded(value: float) -> float:
    """Return a number with four significant digits."""
    return float(f"{value:.4g}")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]
