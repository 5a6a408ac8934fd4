"""Remove one safeguard and check that tests fail: `python -m tests.chaos.mutants --chaos`.

Each mutant is a copy of the repository with one safeguard removed. A test that passes there would
also pass if somebody removed the safeguard by mistake. The expected failures are listed in
`safeguards.py`, and everything must first pass without a mutant: a test that fails for another
reason, or a run that was too slow, proves nothing.
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

COPIED: Final = (
    *("app", "workers", "overnight", "tests", "examples", "benchmarks"),
    *("pyproject.toml", "beat_schedule.py"),
)
LONGEST_SECONDS: Final = 600
PYTEST: Final = ("pytest", "-q", "-pno:cacheprovider")
CHAOS: Final = ("--seconds", "20", "--tasks", "500", "--drain", "45")
# Whether a fault comes at the instant that a safeguard covers is random, so a mutant that one run
# misses is tried with the next seed.
SEEDS: Final = (1, 2, 3)
FAILED: Final = re.compile(r"^FAILED ([^\[\s]+)(?:\[.*?\])?(?: - (.*))?$", re.MULTILINE)
SHOWN: Final = 90
# Failures of the tests or of the chaos run: the message by the name of the test or finding.
Failures = Mapping[str, str]


@dataclass(frozen=True)
class MutantResult:
    """The result of the tests or the chaos run on one mutant; `caught` if the expected failed."""

    mutant: str
    run: str
    caught: bool
    message: str


def main() -> int:
    """Run tests and chaos on each mutant; return 0 if every mutant was caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--chaos", action="store_true", help="use the chaos run as well")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.lost]
    failed = _without_mutants(chosen, with_chaos=options.chaos)
    if failed:
        _print(f"Failures without any mutant, so nothing can be proved: {_summary(failed)}")
        return 2
    results = [
        result for mutant in chosen for result in _test_mutant(mutant, with_chaos=options.chaos)
    ]
    _print("\n" + table(results))
    missed = sum(not result.caught for result in results)
    _print(
        f"\n{missed} of {len(results)} runs missed their mutant" if missed else "\nall were caught"
    )
    return 1 if missed else 0


def _without_mutants(chosen: Sequence[Mutant], *, with_chaos: bool) -> Failures:
    """Run everything on the unchanged repository; return the failures."""
    failed = dict(_tests_on([], sorted({test for mutant in chosen for test in mutant.tests})))
    for bias in sorted({mutant.bias for mutant in chosen if with_chaos and mutant.chaos}):
        failed |= _chaos_on([], bias, SEEDS[0])
        if COMPANIONS[bias]:
            failed |= _chaos_on(COMPANIONS[bias], bias, SEEDS[0])
    return failed


def _test_mutant(mutant: Mutant, *, with_chaos: bool) -> Iterator[MutantResult]:
    began = time.monotonic()
    yield _print_result(judge_tests(mutant, _tests_on([mutant.edit], list(mutant.tests))), began)
    if with_chaos and mutant.chaos:
        began = time.monotonic()
        yield _print_result(_judge_by_chaos(mutant), began)


def _judge_by_chaos(mutant: Mutant) -> MutantResult:
    """Run chaos on a mutant, with further seeds until one catches it; return the last result."""
    edits = [mutant.edit, *mutant.also_without.values()]
    for seed in SEEDS:
        result = judge_chaos(mutant, _chaos_on(edits, mutant.bias, seed))
        if result.caught:
            break
    return result


def judge_tests(mutant: Mutant, failed: Failures) -> MutantResult:
    """Return whether every expected test failed, each with the expected message."""
    caught = all(
        test in failed and message in failed[test] for test, message in mutant.tests.items()
    )
    return MutantResult(mutant.lost, "tests", caught, _summary(failed))


def judge_chaos(mutant: Mutant, failed: Failures) -> MutantResult:
    """Return whether a chaos run had one of the expected findings; other findings prove nothing.

    For example, a stack may be too slow to drain only because the machine is busy.
    """
    expected: dict[str, str] = {}
    for what, message in failed.items():
        for line in message.splitlines():
            if any(text in f"{what}: {line}" for text in mutant.chaos):
                expected.setdefault(what, line)
    lost = ", ".join([mutant.lost, *mutant.also_without])
    return MutantResult(lost, "chaos", bool(expected), _summary(expected or failed))


def table(results: Sequence[MutantResult]) -> str:
    """Return the results as a table, one line each."""
    rows = [("mutant: without", "run", "", "failures")]
    rows += [
        (result.mutant, result.run, "caught" if result.caught else "MISSED", result.message)
        for result in results
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    )


def _print_result(result: MutantResult, began: float) -> MutantResult:
    verdict = "caught" if result.caught else "MISSED"
    took = time.monotonic() - began
    _print(f"{verdict:6} by {result.run:5} in {took:5.1f} s  without {result.mutant}")
    return result


def _summary(failed: Failures) -> str:
    """Return the failures in one line, each with its name and first line."""
    lines = [
        f"{what.rpartition('::')[2]}: {(message.splitlines() or [''])[0][:SHOWN]}"
        for what, message in failed.items()
    ]
    return "; ".join(lines) or "nothing"


def _tests_on(edits: Sequence[Edit], tests: Sequence[str]) -> Failures:
    """Run tests on a copy of the repository; return those that failed, with their reasons."""
    if not tests:
        return {}
    with _copy(edits) as directory:
        return failures(_run(directory, [*PYTEST, *tests]))


def failures(output: str) -> Failures:
    """Return the failed tests and their messages from pytest's output; cases count as one test."""
    return {match[1]: match[2] or "" for match in FAILED.finditer(output)}


def _chaos_on(edits: Sequence[Edit], bias: str, seed: int) -> Failures:
    """Run chaos on a copy of the repository; return its findings."""
    with _copy(edits) as directory:
        report_file = directory / "report.json"
        options = ["--seed", str(seed), "--json", str(report_file)]
        options += ["--logs", str(directory / "logs")]
        _run(directory, ["tests.chaos.biased", bias, *CHAOS, *options])
        report = json.loads(report_file.read_text())
    return {what: "\n".join(lines) for what, lines in report["findings"].items()}


def _run(directory: Path, command: Sequence[str]) -> str:
    """Run a command in a copy and return its output; raise if it could not run."""
    ended = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=directory,
        # Wide, so that pytest does not cut off the messages.
        env=dict(os.environ)
        | {"PYTHONPATH": f"{directory}:{directory}/app:{directory}/workers", "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_SECONDS,
    )
    if ended.returncode not in (0, 1):
        raise RuntimeError(
            f"{command[0]} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
        )
    return ended.stdout


@contextmanager
def _copy(edits: Sequence[Edit]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="overnight-mutant-") as name_of_copy:
        directory = Path(name_of_copy)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(
                    source, directory / name, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy(source, directory / name)
        for name, old, new in edits:
            text = (directory / name).read_text()
            if text.count(old) != 1:
                raise RuntimeError(
                    f"{name} has changed: the text to remove does not occur exactly once"
                )
            (directory / name).write_text(text.replace(old, new))
        yield directory


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
