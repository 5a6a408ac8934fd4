"""The lock of a home: only one stack runs in a home at a time.

The supervisor and the guards of its services share one locked file. The kernel releases the lock
when all of them have ended. So after `kill -9` of a supervisor the home stays locked until its last
service has ended, and a new supervisor cannot collide with old services.
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

#: How long the services of a dead supervisor may take to end before a new start is refused.
OLD_SERVICES_TIMEOUT = 60.0
#: The reported start time of a process shifts by about a second when the clock is set.
START_TOLERANCE = 2.0


@dataclass(frozen=True)
class HomeHolder:
    """The supervisor that holds a home's lock.

    The start time is kept because the system may give the pid to another process.
    """

    pid: int
    started: float

    @classmethod
    def this_process(cls) -> "HomeHolder":
        """Describe this process."""
        return cls(os.getpid(), psutil.Process().create_time())

    def is_alive(self) -> bool:
        """Return whether the supervisor still runs; False if another process has its pid now."""
        try:
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.started) < START_TOLERANCE
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@contextmanager
def hold(path: Path) -> Iterator[int]:
    """Hold the lock while the context is open; yield the descriptor, which guards hold too.

    Raise AlreadyRunning at once if another supervisor runs. Wait for the last services of a dead
    supervisor, and raise AlreadyRunning if they do not end in time.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _acquire(fd, path)
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(asdict(HomeHolder.this_process())).encode(), 0)
        yield fd
    finally:
        os.close(fd)


def _acquire(fd: int, path: Path) -> None:
    deadline = time.monotonic() + OLD_SERVICES_TIMEOUT
    while not _try_lock(fd):
        holder = _read_holder(path)
        if holder and holder.is_alive():
            raise AlreadyRunning(f"already running as process {holder.pid}")
        if time.monotonic() > deadline:
            raise AlreadyRunning(f"services of an earlier run still hold {path}")
        time.sleep(0.1)


def holder_of(path: Path) -> HomeHolder | None:
    """Return the running supervisor that holds the lock; None if there is none."""
    holder = _read_holder(path)
    if holder is None or not holder.is_alive() or not is_held(path):
        return None
    return holder


def is_held(path: Path) -> bool:
    """Return whether any process holds the lock: a supervisor, or a service of a dead one."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_holder(path: Path) -> HomeHolder | None:
    try:
        return HomeHolder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None  # the file does not exist, or is being written
