"""The interface of artifact stores, and the choice of one from the settings."""

import hashlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from overnight.errors import StoreUnavailable
from overnight_server.telemetry import LogEvent, emit

PART_BYTES = 1024 * 1024
DIGEST = re.compile(r"[0-9a-f]{64}")
S3_PREFIX = "s3://"


class BlobTooLarge(Exception):
    """The content is larger than it may be."""


class BlobNotFound(StoreUnavailable):
    """The store has no blob of this digest."""

    def __init__(self, digest: str) -> None:
        super().__init__(
            f"it has no blob {digest}; restore it, or set OVERNIGHT_ARTIFACT_STORE to the store"
            " that has it"
        )


class StoreMissing(StoreUnavailable):
    """An artifact is in a store, but the settings name none."""

    def __init__(self) -> None:
        super().__init__("none is set; set OVERNIGHT_ARTIFACT_STORE to its folder or bucket")


@dataclass(frozen=True)
class Blob:
    """The digest and the size of a content."""

    digest: str
    size: int


@dataclass(frozen=True)
class StoredBlob:
    """A blob in a store, and how long ago it was last put there."""

    digest: str
    age_seconds: float


class ArtifactStore(Protocol):
    """Keeps contents by their digest; every operation may be repeated.

    Each raises StoreUnavailable if the store is full or cannot be reached.
    """

    def put(self, content: IO[bytes], *, max_bytes: int) -> Blob:
        """Keep a content for good, and return its digest and size; raise BlobTooLarge."""

    def has(self, digest: str) -> bool:
        """Whether the store has a blob."""

    def open(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from `start` up to but not including `end`; raise BlobNotFound."""

    def delete(self, digest: str) -> None:
        """Delete a blob, if the store has it."""

    def blobs(self, after: str = "") -> Iterator[StoredBlob]:
        """Yield the blobs with larger digests than `after`, in the order of their digests."""


def open_store(address: str | None) -> ArtifactStore | None:
    """Return the store at an address: a folder, or s3://bucket/prefix; None without an address."""
    if not address:
        return None
    if address.startswith(S3_PREFIX):
        # Only deployments with a bucket install the library.
        from overnight_server.artifact_store.s3 import S3Store  # noqa: PLC0415

        return S3Store(address)
    from overnight_server.artifact_store.folder import FolderStore  # noqa: PLC0415

    return FolderStore(Path(address))


def read_parts(
    content: bytes | None,
    digest: str | None,
    store: ArtifactStore | None,
    start: int = 0,
    end: int | None = None,
) -> Iterator[bytes]:
    """Yield a part of a content that is in a row or in a store; raise StoreMissing."""
    if digest is None:
        return iter([bytes(content or b"")[start:end]])
    if store is None:
        raise StoreMissing
    return store.open(digest, start, end)


def read_all(content: bytes | None, digest: str | None, store: ArtifactStore | None) -> bytes:
    """Return the whole of a content that is in a row or in a store; raise StoreMissing."""
    return b"".join(read_parts(content, digest, store))


@contextmanager
def store_errors(operation: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise StoreUnavailable for errors of these kinds; the log says what they were.

    The message names no folder and no host, because users see it.
    """
    try:
        yield
    except kinds as error:
        emit(LogEvent.ARTIFACT_STORE_FAILED, operation=operation, error=error)
        reason = error.strerror if isinstance(error, OSError) else None
        raise StoreUnavailable(reason or "it does not answer") from error


@contextmanager
def hashed_copy(
    content: IO[bytes], *, max_bytes: int, folder: Path | None = None
) -> Iterator[tuple[IO[bytes], Blob]]:
    """Copy a content into a temporary file, which is deleted at the end; yield file and digest.

    Raises BlobTooLarge as soon as more than `max_bytes` were read: a file may grow meanwhile.
    """
    digest, size = hashlib.sha256(), 0
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as copy, _deleted(Path(copy.name)):
        while part := content.read(PART_BYTES):
            size += len(part)
            if size > max_bytes:
                raise BlobTooLarge
            digest.update(part)
            copy.write(part)
        copy.flush()
        copy.seek(0)
        yield copy, Blob(digest.hexdigest(), size)


@contextmanager
def _deleted(file: Path) -> Iterator[None]:
    """Delete a file at the end, unless it was renamed."""
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
