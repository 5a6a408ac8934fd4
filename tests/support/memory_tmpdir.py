"""A place in memory for whatever tests write, where the machine has one to spare.

Every test has a database of its own, which is hundreds of small files: on a disk making them takes
several times as long as most tests. A TMPDIR that is already chosen stays as it is.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import psutil

PREFIX = "overnight-tests-"
MEMORY = Path("/dev/shm")
#: Two whole sets of servers and what they log, many times over.
ENOUGH_BYTES = 4 * 1024**3


def _move_to_memory() -> None:
    if "TMPDIR" in os.environ:
        return
    _take_away_what_killed_runs_left()
    if not _has_room(MEMORY):
        return
    place = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=MEMORY)
    # Open to all as the usual place is: when we are root, Postgres runs as another user.
    Path(place).chmod(0o1777)
    # For us and for every process that a test starts.
    os.environ["TMPDIR"] = tempfile.tempdir = place
    atexit.register(_leave, place, os.getpid())


def _has_room(place: Path) -> bool:
    return os.access(place, os.W_OK) and shutil.disk_usage(place).free >= ENOUGH_BYTES


def _take_away_what_killed_runs_left() -> None:
    for place in MEMORY.glob(f"{PREFIX}*-*"):
        maker = place.name.removeprefix(PREFIX).partition("-")[0]
        if maker.isdigit() and not psutil.pid_exists(int(maker)):
            shutil.rmtree(place, ignore_errors=True)


def _leave(place: str, ours: int) -> None:
    if os.getpid() == ours:  # no fork of ours takes it away from us
        shutil.rmtree(place, ignore_errors=True)


_move_to_memory()
