"""Writes results: a table, a JSON file and a chart for each benchmark."""

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chart import bars
from benchmarks.options import Kind
from benchmarks.results import BenchmarkResultDict

THOUSAND = 1000
RESULTS = Path(__file__).parent / "results"


def folder(results: Path, kind: Kind) -> Path:
    """Return the folder of the results; a trial never overwrites a measurement."""
    return results if kind == "full" else results / kind


def write(result: BenchmarkResultDict, results: Path = RESULTS) -> Path:
    """Write the JSON file and the chart; return the path of the JSON file."""
    where = folder(results, result["kind"])
    where.mkdir(parents=True, exist_ok=True)
    path = where / f"{result['name']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".svg").write_text(bars(result), encoding="utf-8")
    return path


def load_all(kind: Kind = "full") -> dict[str, BenchmarkResultDict]:
    """Read the last result of every benchmark that has one."""
    found = sorted(folder(RESULTS, kind).glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in found}


def table(result: BenchmarkResultDict) -> str:
    """Return the table: ratios first, then figures, then the state of the machine."""
    lines = [f"  {name:<52} {shown(value):>10}" for name, value in result["ratios"].items()]
    for row in result["figures"]:
        values = [float(value) for value in row["values"]]
        spread = f" ({shown(min(values))} … {shown(max(values))})" if len(values) > 1 else ""
        label = f"{row['who']}: {row['what']}"
        lines.append(f"  {label:<52} {shown(row['median']):>10} {row['unit']}{spread}")
    lines += [f"  note: {note}" for note in result["notes"]]
    return "\n".join([*lines, *machine(result)])


def shown(value: float) -> str:
    """Return a number with three significant digits and separated thousands.

    >>> shown(12345.6), shown(0.12345), shown(9.87654)
    ('12,346', '0.123', '9.88')
    """
    return f"{value:,.0f}" if abs(value) >= THOUSAND else f"{value:.3g}"


def machine(result: BenchmarkResultDict) -> list[str]:
    """Return the range of fsync times and of other load over all rounds."""
    rows = result["probes"]
    if not rows:
        return []
    words = [
        _range("fsync", [row["fsync_ms"] for row in rows], "ms"),
        _range("our load", [row["own_cores"] for row in rows], "cores"),
        _range("foreign load", [row["foreign_cores"] for row in rows], "cores"),
    ]
    return ["  machine: " + ", ".join(words)]


def _range(title: str, values: Sequence[float], unit: str) -> str:
    return f"{title} {min(values):.3g} … {max(values):.3g} {unit}"
