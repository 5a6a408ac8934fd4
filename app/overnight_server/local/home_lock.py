"""One stack per home: the kernel drops the lock when its holder and all its services are gone.

The guards of the services hold the same open file. So after `kill -9` of a supervisor the home
stays locked for the seconds its services need to end, and the next one cannot run into them.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from overnight_server.local.errors import AlreadyRunning

#: How long a dead supervisor's services may take to end before we call them stuck.
LAST_SERVICES = 60.0
#: The system's idea of a process's start moves by about a second when the clock is set.
START_TOLERANCE = 2.0


@dataclass(frozen=True)
class Holder:
    """The supervisor that holds a home: a pid alone may have been given to another process."""

    pid: int
    started: float

    @classmethod
    def ourselves(cls) -> "Holder":
        """Describe this process."""
        return cls(os.getpid(), psutil.Process().create_time())

    def is_alive(self) -> bool:
        """Whether that very process still runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < START_TOLERANCE
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@contextmanager
def hold(path: Path) -> Iterator[int]:
    """Hold the lock; the open file is given so that guards can hold it too.

    Refuses at once while another supervisor lives; waits for the last services of a dead one.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _take(fd, path)
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(asdict(Holder.ourselves())).encode(), 0)
        yield fd
    finally:
        os.close(fd)


def _take(fd: int, path: Path) -> None:
    deadline = time.monotonic() + LAST_SERVICES
    while not _try(fd):
        holder = _written(path)
        if holder and holder.is_alive():
            raise AlreadyRunning(f"already running as process {holder.pid}")
        if time.monotonic() > deadline:
            raise AlreadyRunning(f"services of an earlier run still hold {path}")
        time.sleep(0.1)


def holder_of(path: Path) -> Holder | None:
    """Tell which living supervisor holds the lock; None if there is none."""
    holder = _written(path)
    if holder is None or not holder.is_alive() or not is_held(path):
        return None
    return holder


def is_held(path: Path) -> bool:
    """Whether anybody holds the lock, be it only the last service of a dead supervisor."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _try(fd)
    finally:
        os.close(fd)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _written(path: Path) -> Holder | None:
    try:
        return Holder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None  # not there, or just being written
