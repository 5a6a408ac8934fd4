"""Break the deployment and see what is left: `python -m tests.chaos --seconds 60 --seed N`."""

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
from tests.chaos.stack import SERVICES

# What the report counts beside its faults. A name with a comma in it cannot be asked for.
COUNTED: Final = (
    "submissions acknowledged",
    *(f"tasks {state}" for state in State),
    *("graphs", "runs begun", "runs that came to an end", "open when the faults stopped"),
    *("messages delivered twice", "children left by a killed main process"),
    *(f"restarts of {service}" for service in SERVICES if "-" not in service),
    *("stale results kept aside", "runs overtaken by a later one", "tasks called poison"),
    *("attempts in a bundle", "poison that ran", "billing months begun"),
)
# What it counts by answers and endings that nobody lists.
COUNTED_BY_KIND: Final = re.compile(r"attempts \w+|(submits|cancels) .+|\w+ ended with -?\d+")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once; 0 if every check passed, 1 if any did not."""
    options = _arguments(arguments)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    # The driver publishes too; its lines would stand between those of the report.
    telemetry.configure("logfmt", "error", "chaos")
    sys.stdout.write(f"chaos: seed {seed}, {options.seconds:g} s\n")
    sys.stdout.flush()
    per_second = rate_for(options.tasks, options.seconds) if options.tasks else Options.per_second
    with _place(options.logs) as logs:
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
def _place(wanted: str | None) -> Iterator[Path]:
    """Yield where logs go; a place of our own making goes with a run that was told to end."""
    place = Path(wanted or tempfile.mkdtemp(prefix="overnight-chaos-"))
    place.mkdir(parents=True, exist_ok=True)
    try:
        yield place
    except (KeyboardInterrupt, SystemExit):
        if wanted is None:
            shutil.rmtree(place, ignore_errors=True)
        raise


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=_seconds, default=60, help="how long faults come")
    parser.add_argument("--seed", type=int, help="the same seed, the same faults; else any")
    parser.add_argument("--tasks", type=at_least_one, help="how many submissions in all, about")
    parser.add_argument("--kill-every", type=_seconds, help="seconds between two kills")
    parser.add_argument(
        "--drain", type=_seconds, default=120, help="seconds the deployment may take after"
    )
    parser.add_argument(
        "--at-least",
        type=_minima,
        default={},
        metavar="WHAT=N,…",
        help="what the report must count, or the run fails: kill=200,crash postgres=20",
    )
    parser.add_argument("--logs", type=_folder, help="where logs and the agents' record go")
    parser.add_argument("--json", type=_file, help="a file for the report")
    return parser.parse_args(arguments)


def _seconds(words: str) -> float:
    """Read a duration that begins and ends."""
    try:
        seconds = float(words)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{words!r} must be seconds above 0, such as 60")
    return seconds


def _folder(words: str) -> str:
    """Read where a folder is or can be, before it is needed."""
    nearest = next(one for one in (Path(words), *Path(words).absolute().parents) if one.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise argparse.ArgumentTypeError(f"{words!r} must be a folder that can be written to")
    return words


def _file(words: str) -> str:
    """Read where a file can be written, before an hour's run depends on it."""
    path = Path(words)
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{words!r} must be a file in a folder that is there")
    return words


def _minima(words: str) -> dict[str, int]:
    """Read `what=count,what=count`, by the names of the report."""
    minima = {}
    for pair in words.split(","):
        what, is_pair, count = (part.strip() for part in pair.rpartition("="))
        if not is_pair:
            raise argparse.ArgumentTypeError(f"{pair!r} must be WHAT=N, such as kill=200")
        if what not in {*FAULTS, *COUNTED} and not COUNTED_BY_KIND.fullmatch(what):
            kinds = ", ".join([*FAULTS, *COUNTED])
            raise argparse.ArgumentTypeError(f"nothing counts {what!r}; there is: {kinds}")
        minima[what] = at_least_one(count)
    return minima


if __name__ == "__main__":
    exit_cleanly_on_signals()
    sys.exit(main())
