"""Results for people and for machines: a table, a JSON file and a chart for each benchmark."""

import json
from pathlib import Path

from benchmarks.chart import bars
from benchmarks.outcome import OutcomeDict

RESULTS = Path(__file__).parent / "results"


def folder(*, quick: bool) -> Path:
    """Return where results go; a rehearsal never overwrites a real measurement."""
    return RESULTS / "quick" if quick else RESULTS


def write(result: OutcomeDict) -> Path:
    """Write the JSON file and the chart; return the former's path."""
    where = folder(quick=result["quick"])
    where.mkdir(parents=True, exist_ok=True)
    path = where / f"{result['name']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".svg").write_text(bars(result), encoding="utf-8")
    return path


def load_all(*, quick: bool = False) -> dict[str, OutcomeDict]:
    """Read the last result of every benchmark that has one."""
    found = sorted(folder(quick=quick).glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in found}


def table(result: OutcomeDict) -> str:
    """Set ratios first, then the figures, then the state of the machine."""
    lines = [f"  {name:<52} {value:>10.4g}" for name, value in result["ratios"].items()]
    for row in result["figures"]:
        values = row["values"]
        spread = f" ({min(values):.4g} … {max(values):.4g})" if isinstance(values, list) else ""
        label = f"{row['who']}: {row['what']}"
        lines.append(f"  {label:<52} {row['median']:>10.4g} {row['unit']}{spread}")
    lines += [f"  note: {note}" for note in result["notes"]]
    return "\n".join([*lines, *machine(result)])


def machine(result: OutcomeDict) -> list[str]:
    """Say what the disk and the neighbours were like: least and most over all rounds."""
    rows = result["probes"]
    if not rows:
        return []
    words = [
        f"{title} {min(seen):.3g} … {max(seen):.3g} {unit}"
        for title, key, unit in (
            ("fsync", "fsync_ms", "ms"),
            ("our load", "own_cores", "cores"),
            ("foreign load", "foreign_cores", "cores"),
        )
        if (seen := [float(str(row[key])) for row in rows])
    ]
    return ["  machine: " + ", ".join(words)]
