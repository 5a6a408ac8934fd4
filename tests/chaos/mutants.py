"""Take a safeguard away and see an instrument turn red: `python -m tests.chaos.mutants --chaos`.

Each mutant is a copy of the repository with one safeguard edited out of it. An instrument that
stays green there would also stay green if the safeguard were lost one day by mistake. What must
turn red is named beforehand, and first everything is seen green without a mutant: a test that
fails for another reason, or a run that was too slow, shows nothing.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.chaos.safeguards import COMPANIONS, MUTANTS, Edit, Mutant
from tests.support.workers import ROOT

COPIED: Final = ("app", "workers", "overnight", "tests", "pyproject.toml", "beat_schedule.py")
LONGEST_SECONDS: Final = 600
PYTEST: Final = ("pytest", "-q", "-pno:cacheprovider")
CHAOS: Final = ("--seconds", "20", "--seed", "1", "--tasks", "500", "--drain", "45")
FAILED: Final = re.compile(r"^FAILED ([^\[\s]+)(?:\[.*?\])?(?: - (.*))?$", re.MULTILINE)
SHOWN: Final = 90
# What an instrument found broken, by the name of the test or finding, in its own words.
Red = Mapping[str, str]


@dataclass(frozen=True)
class Sight:
    """What one instrument made of one mutant; `seen` if that was what should turn red."""

    mutant: str
    instrument: str
    seen: bool
    words: str


def main() -> int:
    """Show each mutant to its instruments; 0 if every one of them was seen."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--chaos", action="store_true", help="use the chaos run as well")
    options = parser.parse_args()
    chosen = [one for one in MUTANTS if options.only in one.lost]
    red = _without_mutants(chosen, with_chaos=options.chaos)
    if red:
        _say(f"red without any mutant, so nothing can be shown: {_in_words(red)}")
        return 2
    sights = [sight for one in chosen for sight in _show(one, with_chaos=options.chaos)]
    _say("\n" + table(sights))
    missed = sum(not sight.seen for sight in sights)
    _say(f"\n{missed} of {len(sights)} looks missed their mutant" if missed else "\nall were seen")
    return 1 if missed else 0


def _without_mutants(chosen: Sequence[Mutant], *, with_chaos: bool) -> Red:
    """Use every instrument on the deployment as it is; nothing may be red."""
    red = dict(_tests_on([], sorted({test for one in chosen for test in one.tests})))
    for bias in sorted({one.bias for one in chosen if with_chaos and one.chaos}):
        red |= _chaos_on([], bias)
        if COMPANIONS[bias]:
            red |= _chaos_on(COMPANIONS[bias], bias)
    return red


def _show(mutant: Mutant, *, with_chaos: bool) -> Iterator[Sight]:
    began = time.monotonic()
    yield _told(judge_tests(mutant, _tests_on([mutant.edit], list(mutant.tests))), began)
    if with_chaos and mutant.chaos:
        began = time.monotonic()
        red = _chaos_on([mutant.edit, *mutant.also_without.values()], mutant.bias)
        yield _told(judge_chaos(mutant, red), began)


def judge_tests(mutant: Mutant, red: Red) -> Sight:
    """Tell whether every test that should fail did, for the reason it should give."""
    seen = all(test in red and words in red[test] for test, words in mutant.tests.items())
    return Sight(mutant.lost, "tests", seen, _in_words(red))


def judge_chaos(mutant: Mutant, red: Red) -> Sight:
    """Tell whether a chaos run found any of what it should; whatever else it found shows nothing.

    A deployment that lost a safeguard may also be too slow to drain, and so may a busy machine.
    """
    expected: dict[str, str] = {}
    for what, words in red.items():
        for line in words.splitlines():
            if any(word in f"{what}: {line}" for word in mutant.chaos):
                expected.setdefault(what, line)
    lost = ", ".join([mutant.lost, *mutant.also_without])
    return Sight(lost, "chaos", bool(expected), _in_words(expected or red))


def table(sights: Sequence[Sight]) -> str:
    """Return what was seen, a line for each look."""
    rows = [("mutant: the deployment without", "instrument", "", "what turned red")]
    rows += [
        (one.mutant, one.instrument, "seen" if one.seen else "MISSED", one.words) for one in sights
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    )


def _told(sight: Sight, began: float) -> Sight:
    word = "seen" if sight.seen else "MISSED"
    took = time.monotonic() - began
    _say(f"{word:6} by {sight.instrument:5} in {took:5.1f} s  without {sight.mutant}")
    return sight


def _in_words(red: Red) -> str:
    """Say what turned red, each thing by its name and first line."""
    said = [
        f"{what.rpartition('::')[2]}: {(words.splitlines() or [''])[0][:SHOWN]}"
        for what, words in red.items()
    ]
    return "; ".join(said) or "nothing"


def _tests_on(edits: Sequence[Edit], tests: Sequence[str]) -> Red:
    """Run tests on a copy of the repository; return those that failed, with their reasons."""
    if not tests:
        return {}
    with _copy(edits) as place:
        return failures(_run(place, [*PYTEST, *tests]))


def failures(said: str) -> Red:
    """Read from what pytest said which tests failed, and why; a test's cases count as one."""
    return {match[1]: match[2] or "" for match in FAILED.finditer(said)}


def _chaos_on(edits: Sequence[Edit], bias: str) -> Red:
    """Let chaos run on a copy of the repository; return what it found broken."""
    with _copy(edits) as place:
        written = place / "report.json"
        kept = ["--json", str(written), "--logs", str(place / "logs")]
        _run(place, ["tests.chaos.biased", bias, *CHAOS, *kept])
        report = json.loads(written.read_text())
    return {what: "\n".join(lines) for what, lines in report["findings"].items()}


def _run(place: Path, instrument: Sequence[str]) -> str:
    """Use an instrument on a copy; one that cannot even run proves nothing."""
    ended = subprocess.run(
        [sys.executable, "-m", *instrument],
        cwd=place,
        # Wide, so that pytest does not cut off the reasons.
        env=dict(os.environ)
        | {"PYTHONPATH": f"{place}:{place}/app:{place}/workers", "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_SECONDS,
    )
    if ended.returncode not in (0, 1):
        raise RuntimeError(
            f"{instrument[0]} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
        )
    return ended.stdout


@contextmanager
def _copy(edits: Sequence[Edit]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="overnight-mutant-") as directory:
        place = Path(directory)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, place / name)
        for name, old, new in edits:
            text = (place / name).read_text()
            if text.count(old) != 1:
                raise RuntimeError(f"{name} has changed; what should be lost is not there once")
            (place / name).write_text(text.replace(old, new))
        yield place


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
