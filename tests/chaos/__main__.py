"""Inject faults into a stack and check it: `python -m tests.chaos --seconds 60 --seed N`."""

import argparse
import json
import math
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.options import Parser, at_least_one, exit_cleanly_on_signals
from overnight_server import telemetry
from overnight_server.domain.lifecycle import State
from tests.chaos.driver import Options, rate_for, run
from tests.chaos.faults import FAULTS
from tests.chaos.stack import SERVICES, command_of

# The counts of the report besides its faults. --at-least cannot name a count with a comma.
COUNTED: Final = (
    "submissions acknowledged",
    *(f"tasks {state}" for state in State),
    *("graphs", "runs started", "runs finished", "open when the faults stopped"),
    *("messages delivered twice", "children left by a killed main process"),
    *(f"restarts of {command}" for command in {command_of(name): None for name in SERVICES}),
    *("stale results stored", "runs overtaken by a later one", "tasks marked as poison"),
    *("attempts in a bundle", "poison that ran", "billing months started"),
    *("areas audited", "commands completed", "tasks of HTTP agents completed"),
)
# Further counts: one for each response, outcome or exit code that occurs.
COUNTED_BY_KIND: Final = re.compile(r"attempts \w+|(submits|cancels) .+|\w+ ended with -?\d+")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once; return 0 if every check passed, 1 if any failed."""
    options = _arguments(arguments)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    # The driver publishes messages too; its log lines would appear inside the report.
    telemetry.configure("logfmt", "error", "chaos")
    sys.stdout.write(f"chaos: seed {seed}, {options.seconds:g} s\n")
    sys.stdout.flush()
    per_second = rate_for(options.tasks, options.seconds) if options.tasks else Options.per_second
    with _log_directory(options.logs) as logs:
        report = run(
            Options(
                options.seconds,
                seed,
                per_second,
                options.kill_every,
                options.drain,
                options.at_least,
            ),
            logs,
        )
    sys.stdout.write(report.text() + f"\nlogs: {logs}\n")
    if options.json:
        Path(options.json).write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    return 0 if report.passed else 1


@contextmanager
def _log_directory(chosen: str | None) -> Iterator[Path]:
    """Yield the log directory; a temporary one is removed if the run is interrupted."""
    directory = Path(chosen or tempfile.mkdtemp(prefix="overnight-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield directory
    except (KeyboardInterrupt, SystemExit):
        if chosen is None:
            shutil.rmtree(directory, ignore_errors=True)
        raise


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=_seconds, default=60, help="how long faults are injected")
    parser.add_argument(
        "--seed", type=int, help="the same seed gives the same faults; default: random"
    )
    parser.add_argument("--tasks", type=at_least_one, help="about how many submissions in total")
    parser.add_argument("--kill-every", type=_seconds, help="seconds between two kills")
    parser.add_argument(
        "--drain",
        type=_seconds,
        default=120,
        help="after the faults, seconds in which at least one task must end until all have",
    )
    parser.add_argument(
        "--at-least",
        type=_minima,
        default={},
        metavar="WHAT=N,…",
        help="minimum counts, or the run fails: kill=200,crash postgres=20",
    )
    parser.add_argument(
        "--logs", type=_folder, help="directory for logs and the record of the handlers"
    )
    parser.add_argument("--json", type=_file, help="a file for the report")
    return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    """Read a positive, finite number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be seconds above 0, such as 60")
    return seconds


def _folder(text: str) -> str:
    """Read the path of a folder that exists or can be created."""
    nearest = next(path for path in (Path(text), *Path(text).absolute().parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise argparse.ArgumentTypeError(f"{text!r} must be a folder that can be written to")
    return text


def _file(text: str) -> str:
    """Read the path of a file that can be written; checked before a long run starts."""
    path = Path(text)
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} must be a file in a folder that exists")
    return text


def _minima(text: str) -> dict[str, int]:
    """Read `what=count,what=count`, with the names of the report."""
    minima = {}
    for pair in text.split(","):
        what, is_pair, count = (part.strip() for part in pair.rpartition("="))
        if not is_pair:
            raise argparse.ArgumentTypeError(f"{pair!r} must be WHAT=N, such as kill=200")
        if what not in {*FAULTS, *COUNTED} and not COUNTED_BY_KIND.fullmatch(what):
            kinds = ", ".join([*FAULTS, *COUNTED])
            raise argparse.ArgumentTypeError(f"the report has no count {what!r}; it has: {kinds}")
        minima[what] = at_least_one(count)
    return minima


if __name__ == "__main__":
    exit_cleanly_on_signals()
    sys.exit(main())
