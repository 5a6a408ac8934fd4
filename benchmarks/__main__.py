"""Measure by name, or everything: `python -m benchmarks [--quick] [NAME …]`, then `report`."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import goals, page, registry, sheet
from benchmarks.arena import Arena, arena
from benchmarks.asked import Asked
from benchmarks.outcome import OutcomeDict

REPORT = "report"


def main(arguments: Sequence[str] | None = None) -> int:
    """List, run or report what was asked for; answer with the exit code."""
    known = registry.found()
    parser = _parser()
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in {*known, REPORT}]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there is: {', '.join(known)}, {REPORT}")
    if given.list:
        for name, benchmark in known.items():
            print(f"{name:<14} {benchmark.question}")
        return 0
    asked = Asked(
        quick=given.quick,
        rounds=given.rounds,
        jobs=given.jobs,
        only=given.only.split(",") if given.only else (),
        settings=dict(pair.split("=", 1) for pair in given.set),
    )
    measure_all([known[name] for name in given.names or known if name != REPORT], asked)
    if not given.names or REPORT in given.names:
        results = sheet.load_all(asked.kind)
        print(goals.table(results))
        if given.write:
            print(f"written to {page.write(results)}")
    return 0


def measure_all(benchmarks: Sequence[registry.Benchmark], asked: Asked) -> None:
    """Measure each on servers of its own; a rehearsal shares them."""
    with ExitStack() as shared:
        place = shared.enter_context(arena()) if asked.quick and benchmarks else None
        for benchmark in benchmarks:
            with ExitStack() as own:
                run_one(benchmark, asked, place or own.enter_context(arena()))


def run_one(
    benchmark: registry.Benchmark, asked: Asked, place: Arena, results: Path = sheet.RESULTS
) -> OutcomeDict:
    """Measure one thing, show it and write it down."""
    print(f"\n{benchmark.name}: {benchmark.question}", flush=True)
    place.probes.clear()
    outcome = benchmark.measure(asked, place)
    outcome.probes = list(place.probes)
    result = outcome.as_dict(benchmark.name, benchmark.question, asked.kind)
    print(sheet.table(result))
    print(f"  written to {sheet.write(result, results)}", flush=True)
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; all if none")
    parser.add_argument("--list", action="store_true", help="say what there is, run nothing")
    parser.add_argument("--quick", action="store_true", help="seconds, not minutes: a rehearsal")
    parser.add_argument("--write", action="store_true", help="put the report into the docs")
    parser.add_argument("--rounds", type=int, help="how often each contestant has its turn")
    parser.add_argument("--jobs", type=int, help="jobs of a drain (fast queues get a multiple)")
    parser.add_argument("--only", metavar="WHO,WHO", help="contestants by name: overnight,celery")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of ours for this run, such as bundle_max=1",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
