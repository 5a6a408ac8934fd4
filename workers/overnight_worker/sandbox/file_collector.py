"""Reads the files that a command has left, when its sandbox has ended.

A command can leave links to files of the host, devices, pipes that block whoever opens them, and
files without an end. Every file is opened by `openat2`, which the kernel keeps below the folder and
away from links, and is copied up to a limit.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

OPENAT2: Final = 437
# Stay below the directory; follow no link of any kind; stay on its file system.
RESOLVE_NO_XDEV: Final = 0x01
RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08
RESOLVE: Final = RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH
# A pipe that nobody writes to, opened without O_NONBLOCK, would block for ever.
FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
OWNER_ONLY: Final = 0o700
CHUNK_BYTES: Final = 1 << 20
# Folders deeper than this are not searched.
MAX_DEPTH: Final = 64
MAX_SKIPPED: Final = 50
_libc = ctypes.CDLL(None, use_errno=True)


class FileTooLarge(Exception):
    """The files of a command are larger than what may be collected."""


@dataclass(frozen=True)
class CollectedFile:
    """One regular file: its path below the folder, and its content in pieces.

    `chunks` must be read before the next file is asked for. It raises FileTooLarge when the limit
    of all files together is reached.
    """

    name: str
    chunks: Iterator[bytes]


@dataclass
class FileCollector:
    """Iterates over the regular files of a folder in a workspace, in the order of their names.

    `skipped` has the paths of the first MAX_SKIPPED others, with the reason; `more_skipped` counts
    the rest that was looked at. Both are complete after the iteration, which ends when `max_files`
    were yielded: a command can leave millions of files.
    """

    workspace: Path
    folder: str = "out"
    max_files: int = 200
    max_bytes: int = 1 << 30
    skipped: dict[str, str] = field(default_factory=dict)
    more_skipped: int = 0

    def __iter__(self) -> Iterator[CollectedFile]:
        """Yield each file, and close it when the next one is asked for."""
        # A command may have closed its workspace, which belongs to the user of the sandbox.
        self.workspace.chmod(OWNER_ONLY)
        top = os.open(self.workspace, FLAGS | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            yield from self._files(top)
        finally:
            os.close(top)

    def _files(self, top: int) -> Iterator[CollectedFile]:
        count, bytes_left = 0, self.max_bytes
        for path, descriptor in self._regular_files(top):
            try:
                if count == self.max_files:
                    self._skip(path, f"only {self.max_files} files are collected")
                    return
                count += 1
                chunks = _Chunks(descriptor, bytes_left)
                yield CollectedFile(path, chunks)
                bytes_left -= chunks.bytes_read
            finally:
                os.close(descriptor)

    def _regular_files(self, top: int) -> Iterator[tuple[str, int]]:
        """Yield path and descriptor of each regular file; a folder that is missing has none."""
        unvisited = [""]
        while unvisited:
            path = unvisited.pop()
            try:
                directory = open_beneath(top, f"{self.folder}/{path}", os.O_DIRECTORY)
            except OSError as error:
                if path or error.errno != errno.ENOENT:
                    self._skip(path or self.folder, _reason(error))
                continue
            try:
                names = sorted(os.listdir(directory))  # noqa: PTH208 - it is open
            finally:
                os.close(directory)
            for name in names:
                yield from self._visit(top, f"{path}/{name}" if path else name, unvisited)

    def _visit(self, top: int, path: str, unvisited: list[str]) -> Iterator[tuple[str, int]]:
        try:
            path.encode()
            descriptor = open_beneath(top, f"{self.folder}/{path}")
        except UnicodeEncodeError:
            self._skip(ascii(path), "its name is not UTF-8")
            return
        except OSError as error:
            self._skip(path, _reason(error))
            return
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            yield path, descriptor
            return
        os.close(descriptor)
        if not stat.S_ISDIR(mode):
            self._skip(path, "it is not a regular file")
        elif path.count("/") >= MAX_DEPTH:
            self._skip(path, f"folders are searched {MAX_DEPTH} levels deep")
        else:
            unvisited.append(path)

    def _skip(self, path: str, reason: str) -> None:
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped[path] = reason
        else:
            self.more_skipped += 1


class _Chunks:
    """The content of an open file, up to a limit; a file may have any length."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self._descriptor = descriptor
        self._limit = limit
        self.bytes_read = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk = os.read(self._descriptor, CHUNK_BYTES)
        if not chunk:
            raise StopIteration
        self.bytes_read += len(chunk)
        if self.bytes_read > self._limit:
            raise FileTooLarge("the files in the workspace are larger than what may be kept")
        return chunk


def open_beneath(directory: int, path: str, flags: int = 0) -> int:
    """Open a file below an open directory without following any link; raise OSError."""
    how = struct.pack("QQQ", FLAGS | flags, 0, RESOLVE)
    descriptor = _libc.syscall(OPENAT2, directory, os.fsencode(path), how, len(how))
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return int(descriptor)


def _reason(error: OSError) -> str:
    reasons = {
        errno.ELOOP: "it is a symbolic link",
        errno.EXDEV: "it leads out of the workspace",
        errno.EACCES: "it cannot be read",
        errno.ENXIO: "it is not a regular file",
        errno.ENAMETOOLONG: "its path is too long",
    }
    return reasons.get(error.errno or 0, error.strerror or str(error))
