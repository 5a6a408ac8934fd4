"""Measure by name, or everything: `python -m benchmarks [--quick] [NAME …]`, then `report`."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import goals, page, registry, sheet
from benchmarks.arena import Arena, arena
from benchmarks.asked import Asked, Parser, at_least_one, leave_in_order
from benchmarks.outcome import OutcomeDict
from benchmarks.rivals import ALL
from overnight_server.settings import Settings, SettingsError, load
from overnight_server.settings.field_types import PREFIX, env_of, nearest_word

REPORT = "report"
CONTESTANTS = ("overnight", *(rival.name for rival in ALL))


def main(arguments: Sequence[str] | None = None) -> int:
    """List, run or report what was asked for; answer with the exit code."""
    known = registry.found()
    parser = _parser()
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in {*known, REPORT}]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there is: {', '.join(known)}, {REPORT}")
    try:
        # As the deployment will, all of them together: one may make another legal.
        load({env_of(name): value for name, value in given.set}, dotenv=Path(os.devnull))
    except SettingsError as error:
        parser.error(f"argument --set: {'; '.join(str(error).splitlines())}")
    if given.list:
        for name, benchmark in known.items():
            say(f"{name:<14} {benchmark.question}")
        return 0
    asked = Asked(
        quick=given.quick,
        rounds=given.rounds,
        jobs=given.jobs,
        only=given.only,
        settings=dict(given.set),
    )
    if given.write and asked.kind != "full":
        parser.error("--write publishes whole measurements only: leave out what makes this a trial")
    measure_all([known[name] for name in given.names or known if name != REPORT], asked)
    if not given.names or REPORT in given.names:
        return report(asked, write=given.write)
    return 0


def report(asked: Asked, *, write: bool) -> int:
    """Hold the last results against the goals, and publish them if asked to."""
    results = sheet.load_all(asked.kind)
    say(goals.table(results))
    if not write:
        return 0
    if not results:
        nothing = "nothing has been measured yet: `make bench` does, and takes half an hour"
        print(nothing, file=sys.stderr)
        return 1
    say(f"written to {page.write(results)}")
    return 0


def say(text: str) -> None:
    """Print it; whoever has stopped listening, as `head` does, misses the rest and no more."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What still stands in the buffer goes nowhere, instead of failing again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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


def _parser() -> Parser:
    parser = Parser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; all if none")
    parser.add_argument("--list", action="store_true", help="say what there is, run nothing")
    parser.add_argument("--quick", action="store_true", help="seconds, not minutes: a rehearsal")
    parser.add_argument("--write", action="store_true", help="put the report into the docs")
    parser.add_argument(
        "--rounds", type=at_least_one, help="how often each contestant has its turn"
    )
    parser.add_argument(
        "--jobs", type=at_least_one, help="jobs of a drain (fast queues get a multiple)"
    )
    parser.add_argument(
        "--only",
        type=_contestants,
        default=(),
        metavar="WHO,WHO",
        help="contestants by name: overnight,celery",
    )
    parser.add_argument(
        "--set",
        action="append",
        type=_setting,
        default=[],
        metavar="NAME=VALUE",
        help="a setting of ours for this run, such as bundle_max=1",
    )
    return parser


def _contestants(words: str) -> list[str]:
    """Read names of contestants; without one that there is, nobody would be measured."""
    names = [name.strip() for name in words.split(",")]
    unknown = [name for name in names if name not in CONTESTANTS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no contestant {', '.join(map(repr, unknown))}; there is: {', '.join(CONTESTANTS)}"
        )
    return names


def _setting(words: str) -> tuple[str, str]:
    """Read a setting by its own name or its environment's."""
    written, is_pair, value = words.partition("=")
    name = written.strip().upper().removeprefix(PREFIX).lower()
    if not is_pair:
        raise argparse.ArgumentTypeError(f"{words!r} must be NAME=VALUE, such as bundle_max=1")
    if name not in Settings.model_fields:
        nearest = nearest_word(name, Settings.model_fields)
        raise argparse.ArgumentTypeError(f"no setting {written!r} (nearest: {nearest})")
    return name, value


if __name__ == "__main__":
    leave_in_order()
    sys.exit(main())
