"""Take a safeguard away and see an instrument turn red: `python -m tests.chaos.mutants`.

Each mutant is a copy of the repository with one safeguard edited out of it. An instrument that
stays green there would also stay green if the safeguard were lost one day by mistake.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.workers import ROOT

COPIED: Final = ("app", "workers", "overnight", "tests", "pyproject.toml", "beat_schedule.py")
SQL: Final = "app/store/sql"
TABLES: Final = "app/store/migrations/versions/spine/tables.sql"
LONGEST_SECONDS: Final = 600
CHAOS: Final = ("tests.chaos", "--seconds", "30", "--seed", "1", "--tasks", "400")
PYTEST: Final = ("pytest", "-q", "-x", "-pno:cacheprovider")


@dataclass(frozen=True)
class Mutant:
    """One safeguard less: in which file, what is replaced by what, and which tests must notice.

    `in_chaos`: a chaos run must notice as well, even a short one.
    """

    lost: str
    edits: Sequence[tuple[str, str, str]]
    instruments: Sequence[str]
    in_chaos: bool = False


MUTANTS: Final = (
    Mutant(
        "the lane's lock in the gate",
        [(f"{SQL}/claim.sql", " FOR NO KEY UPDATE SKIP LOCKED) held", ") held")],
        ["tests/integration/test_gate_pools.py"],
    ),
    Mutant(
        "the pool's lock in the gate",
        [(f"{SQL}/claim.sql", "AND NOT paused FOR UPDATE;", "AND NOT paused;")],
        ["tests/integration/test_dispatch.py"],
    ),
    Mutant(
        "the fence: epoch and token of a settle",
        [
            (
                f"{SQL}/settle.sql",
                "     WHERE t.epoch = v.epoch\n       AND t.token = v.token\n       AND t.state",
                "     WHERE t.state",
            )
        ],
        ["tests/integration/test_settle.py", "tests/integration/test_found_sequences.py"],
    ),
    Mutant(
        "the state a start expects",
        [(f"{SQL}/run.sql", "       AND t.state = ANY (CAST(:sources AS text[]))\n", "")],
        ["tests/integration/test_start.py"],
        in_chaos=True,
    ),
    Mutant(
        "the row's lock in a start",
        [(f"{SQL}/run.sql", "OFFSET 0 FOR NO KEY UPDATE) t", "OFFSET 0) t")],
        ["tests/integration/test_start.py"],
    ),
    Mutant(
        "the fence of a heartbeat",
        [(f"{SQL}/run.sql", "   AND epoch = :epoch\n   AND token = :token\n", "")],
        ["tests/integration/test_heartbeat.py"],
    ),
    Mutant(
        "the lane's lock that makes parents take turns",
        [(f"{SQL}/lanes.sql", " ORDER BY user_id\n   FOR NO KEY UPDATE;", " ORDER BY user_id;")],
        ["tests/integration/test_dependents.py", "tests/integration/test_submit.py"],
    ),
    Mutant(
        "the once in flipping an edge",
        [
            (
                f"{SQL}/graphs.sql",
                "       AND e.satisfied_at IS NULL\n       AND is_met(",
                "       AND is_met(",
            )
        ],
        ["tests/integration/test_edges_once.py"],
    ),
    Mutant(
        "the ledger's key",
        [
            (
                TABLES,
                "CONSTRAINT usage_ledger_once UNIQUE (task_id, epoch, period_started_at, kind)",
                "CONSTRAINT usage_ledger_once UNIQUE (id)",
            )
        ],
        ["tests/integration/test_settle.py"],
    ),
    Mutant(
        "a reaper's second look at the lease",
        [
            (
                f"{SQL}/settle.sql",
                "       AND (NOT v.only_expired OR t.expires_at <= clock())\n",
                "",
            )
        ],
        ["tests/integration/test_reap.py"],
    ),
    Mutant(
        "the promise that hours fit",
        [(f"{SQL}/claim.sql", "promised <= seconds_left", "true")],
        ["tests/integration/test_gate.py"],
    ),
    Mutant(
        "the rule that a worker killed from outside accuses nobody",
        [
            (
                "app/domain/verdicts.py",
                "BLAMELESS = frozenset({WORKER_LOST, ",
                "BLAMELESS = frozenset({",
            )
        ],
        ["tests/unit/test_verdicts.py", "tests/integration/test_settle.py"],
    ),
)


def main() -> int:
    """Show each mutant to its instruments; 0 if every one of them was seen."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mutants", description=__doc__)
    parser.add_argument("--only", help="mutants whose name contains this")
    parser.add_argument("--chaos", action="store_true", help="use the chaos run as well")
    options = parser.parse_args()
    chosen = [one for one in MUTANTS if (options.only or "") in one.lost]
    tests = sorted({path for one in chosen for path in one.instruments})
    if not _is_green([], [*PYTEST, *tests]):
        _say("the instruments are red without any mutant; nothing can be shown")
        return 2
    looks = [(one, (*PYTEST, *one.instruments)) for one in chosen]
    if options.chaos:
        looks += [(one, CHAOS) for one in chosen if one.in_chaos]
    survivors = [one for one, instrument in looks if not _is_seen(one, instrument)]
    _say(f"{len(looks) - len(survivors)} of {len(looks)} looks saw their mutant")
    return 1 if survivors else 0


def _is_seen(mutant: Mutant, instrument: Sequence[str]) -> bool:
    began = time.monotonic()
    seen = not _is_green(mutant.edits, instrument)
    word = "seen" if seen else "SURVIVED"
    took = time.monotonic() - began
    _say(f"{word:9} by {instrument[0]:12} in {took:5.1f} s  without {mutant.lost}")
    return seen


def _is_green(edits: Sequence[tuple[str, str, str]], instrument: Sequence[str]) -> bool:
    """Use an instrument on a copy of the repository; one that cannot even run proves nothing."""
    with _copy(edits) as place:
        ended = subprocess.run(
            [sys.executable, "-m", *instrument],
            cwd=place,
            env=dict(os.environ) | {"PYTHONPATH": str(place)},
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_SECONDS,
        )
    if ended.returncode not in (0, 1):
        raise RuntimeError(
            f"{instrument[0]} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
        )
    return ended.returncode == 0


@contextmanager
def _copy(edits: Sequence[tuple[str, str, str]]) -> Iterator[Path]:
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
