"""The watched folder: files in `FOLDER/USER/` become tasks of that user.

A file moves to `accepted/` beside it, or to `refused/` with a file that says why. It is opened
without following links, in directories that are opened without following links, because a folder
may belong to a user and not to the service.
"""

import fcntl
import math
import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from overnight_server.domain.ids import UserId
from overnight_server.intake.file_drop import (
    FileMustWait,
    FileRefused,
    FoundFile,
    find_user,
    submit_file,
)
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.telemetry import LogEvent, emit

ACCEPTED: Final = "accepted"
REFUSED: Final = "refused"
REASON: Final = ".reason.txt"
#: A file whose time says what the clock of the folder's file system shows.
CLOCK: Final = ".clock"
ENDINGS: Final = (".yaml", ".yml", ".json")
MAX_BYTES: Final = 16 * 1024 * 1024
#: In bytes, which file systems limit to 255; the ending and what we add come on top.
MAX_NAME: Final = 200
#: Passes are seconds apart, and a file may wait for a night.
TOLD_SECONDS: Final = 600
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, the open of a pipe would wait for a writer.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITTEN: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


# When this process last logged for which file the files of a user wait.
_told_at: Final[dict[str, float]] = {}


class _NotYet(Exception):
    """A file is still being written, or has gone."""


@dataclass(frozen=True)
class _Folder:
    """The open directory of one user, and how long files in it must have stayed the same."""

    user: str
    directory: int
    now_ns: int
    settle_ns: int


def take_files(db: Db, settings: Settings) -> int:
    """Make tasks of the files in the watched folder; return how many files were moved.

    A pass that takes long stops, and the next one goes on. Two passes at once do no harm: the
    second one finds the tasks of a file submitted, or the file gone.
    """
    if settings.drop_folder is None:
        return 0
    settings.drop_folder.mkdir(parents=True, exist_ok=True)
    limit, moved = PassLimit(), 0
    with _opened(settings.drop_folder) as root:
        times = (_time_of(root), int(settings.drop_settle_seconds * 1e9))
        for user in _names(root):
            try:
                with _opened(user, root) as directory:
                    moved += _take_of_user(db, settings, _Folder(user, directory, *times), limit)
            except NotADirectoryError:
                continue
            except OSError as error:
                emit(LogEvent.FILE_STUCK, user=user, error=error)
            if limit.is_over:
                break
    return moved


def _take_of_user(db: Db, settings: Settings, folder: _Folder, limit: PassLimit) -> int:
    names = [name for name in _names(folder.directory) if name.lower().endswith(ENDINGS)]
    found = find_user(db, folder.user) if names else None
    if found is not None and found[1]:
        # Files of a disabled user wait, as other work of the user does.
        return 0
    moved = 0
    for name in names:
        try:
            moved += _take(db, settings, folder, name, None if found is None else found[0])
        except FileMustWait as wait:
            # What follows in the order of names would overtake this file.
            _tell_waiting(folder.user, name, str(wait))
            break
        if limit.is_over:
            break
    return moved


def _take(db: Db, settings: Settings, folder: _Folder, name: str, user_id: UserId | None) -> bool:
    """Make tasks of one file and move it; return whether it was moved."""
    file = FoundFile(name, b"", 0)
    try:
        file = _read(folder, name)
        if user_id is None:
            raise FileRefused(f"{name}: no user is called {folder.user}")  # noqa: TRY301
        tasks = submit_file(db, user_id, file, settings)
    except _NotYet:
        return False
    except FileRefused as refusal:
        emit(LogEvent.FILE_REFUSED, file=name, user=folder.user, error=str(refusal))
        return _move(folder, file, REFUSED, str(refusal))
    emit(LogEvent.FILE_ACCEPTED, file=name, user=folder.user, tasks=tasks)
    return _move(folder, file, ACCEPTED)


def _tell_waiting(user: str, name: str, reason: str) -> None:
    """Log the file for which the files of a user wait, now and then."""
    now = time.monotonic()
    if now >= _told_at.get(user, -math.inf) + TOLD_SECONDS:
        _told_at[user] = now
        emit(LogEvent.FILE_WAITS, file=name, user=user, error=reason)


def _read(folder: _Folder, name: str) -> FoundFile:
    """Return a file that nobody is writing; raise _NotYet, or FileRefused for what is no file."""
    with _opened_file(folder, name) as descriptor:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode) or before.st_nlink != 1:
            raise FileRefused(f"{name}: is no file of its own, but a link, a pipe or a directory")
        if before.st_mtime_ns > folder.now_ns - folder.settle_ns or _has_writer(descriptor):
            raise _NotYet
        if before.st_size > MAX_BYTES:
            raise FileRefused(f"{name}: has {before.st_size} bytes; at most {MAX_BYTES} are read")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
        after = os.fstat(descriptor)
    if (after.st_mtime_ns, after.st_size) != (before.st_mtime_ns, len(content)):
        raise _NotYet
    return FoundFile(name, content, before.st_mtime_ns)


@contextmanager
def _opened_file(folder: _Folder, name: str) -> Iterator[int]:
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder.directory)
    except FileNotFoundError:
        raise _NotYet from None
    except OSError as error:
        raise FileRefused(f"{name}: cannot be read: {error.strerror}") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _has_writer(descriptor: int) -> bool:
    """Whether a process has a file open for writing, as far as the system tells it.

    Linux grants a read lease on a file that nobody has open for writing. It tells that to the owner
    of the file only; elsewhere the age of the file must do.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        # Whoever opens the file for writing breaks the lease. Of that the process is told by a
        # signal that it ignores, because SIGIO would end it.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def _move(folder: _Folder, file: FoundFile, to: str, reason: str | None = None) -> bool:
    """Move a file into a directory beside it; return False if it has gone."""
    with suppress(FileExistsError):
        os.mkdir(to, 0o755, dir_fd=folder.directory)
    with _opened(to, folder.directory) as target:
        name = _free_name(target, file)
        if reason is not None:
            with os.fdopen(os.open(name + REASON, _WRITTEN, 0o644, dir_fd=target), "w") as told:
                told.write(f"{reason}\n".encode(errors="replace").decode())
        try:
            os.rename(file.name, name, src_dir_fd=folder.directory, dst_dir_fd=target)
        except FileNotFoundError:
            return False
    return True


def _free_name(directory: int, file: FoundFile) -> str:
    """Return the name of a file, or another one if a different file has it already."""
    stem, ending = Path(file.name).stem, Path(file.name).suffix
    name = f"{_cut(stem, MAX_NAME)}{ending}"
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return name
    return f"{_cut(stem, MAX_NAME // 2)}-{file.key[-12:]}{ending}"


def _cut(name: str, most: int) -> str:
    """Return the beginning of a name that has at most so many bytes."""
    while len(os.fsencode(name)) > most:
        name = name[:-1]
    return name


def _time_of(root: int) -> int:
    """Return the time of the file system in nanoseconds, which the times of files are from."""
    descriptor = os.open(CLOCK, _WRITTEN, 0o600, dir_fd=root)
    try:
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)


def _names(directory: int) -> list[str]:
    """Return the names in a directory in their order, without hidden ones and our own."""
    ours = {ACCEPTED, REFUSED}
    return sorted(name for name in os.listdir(directory) if name[0] != "." and name not in ours)


@contextmanager
def _opened(path: str | Path, parent: int | None = None) -> Iterator[int]:
    flags = _DIRECTORY if parent is not None else _DIRECTORY & ~os.O_NOFOLLOW
    descriptor = os.open(path, flags, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
