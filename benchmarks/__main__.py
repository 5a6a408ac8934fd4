"""Measure by name, or everything: `python -m benchmarks [--quick] [NAME …]`, then `report`."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import goals, registry, report_page, result_files
from benchmarks.options import Options, Parser, at_least_one, exit_cleanly_on_signals
from benchmarks.peer_queues import ALL
from benchmarks.results import BenchmarkResultDict
from benchmarks.servers import BenchmarkServers, start_servers
from overnight_server.settings import Settings, SettingsError, load
from overnight_server.settings.field_types import PREFIX, env_of, nearest_name

REPORT = "report"
QUEUES = ("overnight", *(peer.name for peer in ALL))


def main(arguments: Sequence[str] | None = None) -> int:
    """List, run or report the benchmarks that the arguments name; return the exit code."""
    benchmarks = registry.all_benchmarks()
    parser = _parser()
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in {*benchmarks, REPORT}]
    if unknown:
        parser.error(
            f"no benchmark {', '.join(unknown)}; there is: {', '.join(benchmarks)}, {REPORT}"
        )
    try:
        # All settings are checked together, because one may make another legal.
        load({env_of(name): value for name, value in given.set}, dotenv=Path(os.devnull))
    except SettingsError as error:
        parser.error(f"argument --set: {'; '.join(str(error).splitlines())}")
    if given.list:
        for name, benchmark in benchmarks.items():
            print_line(f"{name:<14} {benchmark.question}")
        return 0
    options = Options(
        quick=given.quick,
        rounds=given.rounds,
        jobs=given.jobs,
        only=given.only,
        settings=dict(given.set),
    )
    if given.write and options.kind != "full":
        parser.error("--write publishes whole measurements only: leave out what makes this a trial")
    measure_all(
        [benchmarks[name] for name in given.names or benchmarks if name != REPORT],
        options,
    )
    if not given.names or REPORT in given.names:
        return report(options, write=given.write)
    return 0


def report(options: Options, *, write: bool) -> int:
    """Compare the last results with the goals, and write them to the docs page if asked to."""
    results = result_files.load_all(options.kind)
    print_line(goals.table(results))
    if not write:
        return 0
    if not results:
        nothing = "nothing has been measured yet: `make bench` does, and takes half an hour"
        print(nothing, file=sys.stderr)
        return 1
    print_line(f"written to {report_page.write(results)}")
    return 0


def print_line(text: str) -> None:
    """Print a line; a closed pipe (`| head`) ends the output without an error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The rest of the buffer is discarded, or the flush at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def measure_all(benchmarks: Sequence[registry.Benchmark], options: Options) -> None:
    """Measure each benchmark on its own servers; a quick run shares one pair of servers."""
    with ExitStack() as shared:
        servers = shared.enter_context(start_servers()) if options.quick and benchmarks else None
        for benchmark in benchmarks:
            with ExitStack() as own:
                run_benchmark(benchmark, options, servers or own.enter_context(start_servers()))


def run_benchmark(
    benchmark: registry.Benchmark,
    options: Options,
    servers: BenchmarkServers,
    results: Path = result_files.RESULTS,
) -> BenchmarkResultDict:
    """Run one benchmark, print its table and write its result files."""
    print(f"\n{benchmark.name}: {benchmark.question}", flush=True)
    servers.probes.clear()
    measured = benchmark.measure(options, servers)
    measured.probes = list(servers.probes)
    result = measured.as_dict(benchmark.name, benchmark.question, options.kind)
    print(result_files.table(result))
    print(f"  written to {result_files.write(result, results)}", flush=True)
    return result


def _parser() -> Parser:
    parser = Parser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; all if none")
    parser.add_argument("--list", action="store_true", help="list the benchmarks, run nothing")
    parser.add_argument(
        "--quick", action="store_true", help="a trial run of seconds instead of minutes"
    )
    parser.add_argument(
        "--write", action="store_true", help="write the report to docs/performance.md"
    )
    parser.add_argument("--rounds", type=at_least_one, help="how many rounds each queue runs")
    parser.add_argument(
        "--jobs", type=at_least_one, help="jobs of a drain (fast queues get a multiple)"
    )
    parser.add_argument(
        "--only",
        type=_queue_names,
        default=(),
        metavar="WHO,WHO",
        help="queues by name: overnight,celery",
    )
    parser.add_argument(
        "--set",
        action="append",
        type=_setting,
        default=[],
        metavar="NAME=VALUE",
        help="an Overnight setting for this run, such as bundle_max=1",
    )
    return parser


def _queue_names(words: str) -> list[str]:
    """Parse the names of queues; raise for a name that is not one."""
    names = [name.strip() for name in words.split(",")]
    unknown = [name for name in names if name not in QUEUES]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no queue {', '.join(map(repr, unknown))}; there is: {', '.join(QUEUES)}"
        )
    return names


def _setting(words: str) -> tuple[str, str]:
    """Parse NAME=VALUE; NAME may be the setting's name or its environment variable."""
    written, is_pair, value = words.partition("=")
    name = written.strip().upper().removeprefix(PREFIX).lower()
    if not is_pair:
        raise argparse.ArgumentTypeError(f"{words!r} must be NAME=VALUE, such as bundle_max=1")
    if name not in Settings.model_fields:
        nearest = nearest_name(name, Settings.model_fields)
        raise argparse.ArgumentTypeError(f"no setting {written!r} (nearest: {nearest})")
    return name, value


if __name__ == "__main__":
    exit_cleanly_on_signals()
    sys.exit(main())
