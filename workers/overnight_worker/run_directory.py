"""The directories in which commands work: one per run, removed with all that is in it.

A process that is killed leaves its directory. The kernel then releases the lock that it held, so
whoever finds a directory without a lock removes it.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from overnight_server.telemetry import get
from overnight_worker.sandbox.workspace import create_workspace, remove_workspace

# On disk: what is below /tmp may be memory.
PLACE: Final = Path("/var/tmp")  # noqa: S108 - each directory in it is made for one run
PREFIX: Final = "overnight-run-"
# Others than the worker's user may enter it, but not list it: a sandbox of a root worker has a user
# of its own.
PARENT_MODE: Final = 0o711
_log = get(__name__)


@contextmanager
def workspace() -> Iterator[Path]:
    """Make an empty workspace, and remove it with all that a command left in it.

    What cannot be removed is no reason to lose a run: it is logged, and tried again when a worker
    starts.
    """
    parent, lock = _locked_directory()
    try:
        parent.chmod(PARENT_MODE)
        yield create_workspace(parent)
    finally:
        try:
            _remove(parent)
        except OSError as error:
            _log.warning("a workspace was not removed", path=str(parent), error=error)
        os.close(lock)


def remove_left_workspaces() -> None:
    """Remove the workspaces of processes that were killed; those in use are left alone."""
    for parent in PLACE.glob(f"{PREFIX}*"):
        # Another worker may remove it at this moment, and that of another user cannot be removed.
        with suppress(OSError):
            lock = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(parent)
            finally:
                os.close(lock)


def _locked_directory() -> tuple[Path, int]:
    """Make a directory and lock it; return it and the descriptor that holds the lock."""
    while True:
        parent = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACE))
        lock = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return parent, lock
        # Another worker found it before it was locked, and removed it.
        os.close(lock)


def _remove(parent: Path) -> None:
    for path in parent.iterdir():
        if path.is_dir() and not path.is_symlink():
            remove_workspace(path)
        else:
            path.unlink()
    parent.rmdir()
