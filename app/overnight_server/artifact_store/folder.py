"""An artifact store in a folder; the blob abcd… is the file ab/cd/abcd… below it.

A blob is written to a temporary file, forced to disk, and renamed, so a file with the name of a
digest is always whole. All processes that use the store must see the same folder.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from overnight_server.artifact_store.store import (
    DIGEST,
    PART_BYTES,
    Blob,
    BlobNotFound,
    StoredBlob,
    hashed_copy,
    store_errors,
)

# Temporary files, beside the folders of blobs.
UNFINISHED: Final = "unfinished"
# A put that has not ended after this time was interrupted.
UNFINISHED_SECONDS: Final = 48 * 3600


class FolderStore:
    """Keeps blobs as files below a folder, which is created when it is first needed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, content: IO[bytes], *, max_bytes: int) -> Blob:
        """Keep a content for good; putting it again only renews its time."""
        with store_errors("put", OSError):
            return self._put(content, max_bytes)

    def _put(self, content: IO[bytes], max_bytes: int) -> Blob:
        unfinished = self._root / UNFINISHED
        unfinished.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hashed_copy(content, max_bytes=max_bytes, folder=unfinished) as (copy, blob):
            os.fsync(copy.fileno())
            target = self._path(blob.digest)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            Path(copy.name).rename(target)
            for folder in (target.parent, target.parent.parent, self._root):
                _sync_folder(folder)
        return blob

    def has(self, digest: str) -> bool:
        """Whether the folder has the file of a blob."""
        return self._path(digest).is_file()

    def open(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes of a blob; BlobNotFound is raised at once, not with the first byte."""
        try:
            with store_errors("open", PermissionError):
                file = self._path(digest).open("rb")
        except (FileNotFoundError, NotADirectoryError):
            raise BlobNotFound(digest) from None
        return _parts(file, start, end)

    def delete(self, digest: str) -> None:
        """Delete the file of a blob."""
        with store_errors("delete", OSError):
            self._path(digest).unlink(missing_ok=True)

    def blobs(self, after: str = "") -> Iterator[StoredBlob]:
        """Yield the blobs in order; delete what interrupted puts left two days ago."""
        self._delete_unfinished()
        for first in _entries(self._root, after[:2]):
            for second in _entries(first, after[2:4] if first.name == after[:2] else ""):
                for file in _entries(second, after):
                    if DIGEST.fullmatch(file.name) and file.name > after:
                        with contextlib.suppress(FileNotFoundError):
                            yield StoredBlob(file.name, time.time() - file.stat().st_mtime)

    def _path(self, digest: str) -> Path:
        if not DIGEST.fullmatch(digest):
            raise BlobNotFound(digest)
        return self._root / digest[:2] / digest[2:4] / digest

    def _delete_unfinished(self) -> None:
        for file in _entries(self._root / UNFINISHED, ""):
            with contextlib.suppress(FileNotFoundError):
                if file.stat().st_mtime < time.time() - UNFINISHED_SECONDS:
                    file.unlink()


def _entries(folder: Path, first: str) -> list[Path]:
    """Return the entries of a folder from a name on, in order; none if there is no such folder."""
    try:
        return sorted(path for path in folder.iterdir() if path.name >= first)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _parts(file: IO[bytes], start: int, end: int | None) -> Iterator[bytes]:
    with file:
        file.seek(start)
        left = None if end is None else end - start
        while left is None or left > 0:
            part = file.read(PART_BYTES if left is None else min(PART_BYTES, left))
            if not part:
                return
            left = None if left is None else left - len(part)
            yield part


def _sync_folder(folder: Path) -> None:
    """Force a new name in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
