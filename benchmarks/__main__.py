"""Measure by name, or everything: `python -m benchmarks [--quick] [NAME …]`, then `report`."""

import argparse
import sys
from collections.abc import Sequence

from benchmarks import goals, registry, sheet
from benchmarks.asked import Asked

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
    for name in given.names or known:
        if name != REPORT:
            _run(known[name], asked)
    if not given.names or REPORT in given.names:
        print(goals.table(sheet.load_all(quick=asked.quick)))
    return 0


def _run(benchmark: registry.Benchmark, asked: Asked) -> None:
    print(f"\n{benchmark.name}: {benchmark.question}", flush=True)
    outcome = benchmark.measure(asked)
    result = outcome.as_dict(benchmark.name, benchmark.question, quick=asked.quick)
    print(sheet.table(result))
    print(f"  written to {sheet.write(result)}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; all if none")
    parser.add_argument("--list", action="store_true", help="say what there is, run nothing")
    parser.add_argument("--quick", action="store_true", help="seconds, not minutes: a rehearsal")
    parser.add_argument("--rounds", type=int, help="how often each contestant has its turn")
    parser.add_argument("--jobs", type=int, help="jobs of a drain (fast queues get a multiple)")
    parser.add_argument("--only", metavar="WHO,WHO", help="contestants by name: overnight,celery")
    parser.add_argument(
        *("--set",),
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of ours for this run, such as bundle_max=1",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
