"""Break the house and see what is left: `python -m tests.chaos --seconds 60 --seed N`."""

import argparse
import json
import secrets
import sys
import tempfile
from pathlib import Path

from app import telemetry
from tests.chaos.driver import Options, rate_for, run


def main() -> int:
    """Run once; 0 if every check passed, 1 if any did not."""
    options = _arguments()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    # The driver publishes too; its lines would stand between those of the report.
    telemetry.configure("logfmt", "error", "chaos")
    sys.stdout.write(f"chaos: seed {seed}, {options.seconds:g} s\n")
    sys.stdout.flush()
    logs = Path(options.logs or tempfile.mkdtemp(prefix="overnight-chaos-"))
    logs.mkdir(parents=True, exist_ok=True)
    per_second = rate_for(options.tasks, options.seconds) if options.tasks else Options.per_second
    report = run(
        Options(
            options.seconds, seed, per_second, options.kill_every, options.drain, options.at_least
        ),
        logs,
    )
    sys.stdout.write(report.text() + f"\nlogs: {logs}\n")
    if options.json:
        Path(options.json).write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    return 0 if report.passed else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long faults come")
    parser.add_argument("--seed", type=int, help="the same seed, the same faults; else any")
    parser.add_argument("--tasks", type=int, help="how many submissions in all, about")
    parser.add_argument("--kill-every", type=float, help="seconds between two kills")
    parser.add_argument("--drain", type=float, default=120, help="seconds the house may take after")
    parser.add_argument(
        "--at-least",
        type=_minima,
        default={},
        metavar="WHAT=N,…",
        help="what the report must count, or the run fails: kill=200,crash postgres=20",
    )
    parser.add_argument("--logs", help="where logs and the agents' record go")
    parser.add_argument("--json", help="a file for the report")
    return parser.parse_args()


def _minima(words: str) -> dict[str, int]:
    """Read `what=count,what=count`, by the names of the report."""
    pairs = (pair.rpartition("=") for pair in words.split(","))
    return {what.strip(): int(count) for what, _, count in pairs}


if __name__ == "__main__":
    sys.exit(main())
