"""An artifact store in a bucket of an S3-compatible service; needs the extra `s3`.

Keys, region and address of the service come from the usual variables: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL; AWS_ALLOW_HTTP for a service without TLS.
"""

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store as Bucket

from overnight_server.artifact_store.store import (
    DIGEST,
    Blob,
    BlobNotFound,
    StoredBlob,
    hashed_copy,
    store_errors,
)

if TYPE_CHECKING:
    from obstore.store import RetryConfig

READ_BYTES: Final = 8 * 1024 * 1024
# Each request may take 30 s. A service that does not answer is reported soon to the run that wants
# to store something: the run decides whether it tries again.
RETRY_CONFIG: "RetryConfig" = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}


class S3Store:
    """Keeps blobs as objects below `s3://bucket/prefix`."""

    def __init__(self, address: str) -> None:
        self._bucket = Bucket.from_url(address, retry_config=RETRY_CONFIG)

    def put(self, content: IO[bytes], *, max_bytes: int) -> Blob:
        """Keep a content; the service confirms it when it is durable."""
        with _errors("put", OSError), hashed_copy(content, max_bytes=max_bytes) as (copy, blob):
            obstore.put(self._bucket, _key(blob.digest), copy)
        return blob

    def has(self, digest: str) -> bool:
        """Whether the bucket has the object of a blob."""
        try:
            with _errors("head"):
                obstore.head(self._bucket, _key(digest))
        except FileNotFoundError:
            return False
        return True

    def open(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes of a blob."""
        try:
            with _errors("open"):
                size = obstore.head(self._bucket, _key(digest))["size"]
        except FileNotFoundError:
            raise BlobNotFound(digest) from None
        return self._parts(digest, start, size if end is None else min(end, size))

    def _parts(self, digest: str, start: int, end: int) -> Iterator[bytes]:
        # A request for each part: the time of a request is limited, and a reader may be slow.
        for first in range(start, end, READ_BYTES):
            with _errors("read"):
                part = obstore.get_range(
                    self._bucket, _key(digest), start=first, end=min(first + READ_BYTES, end)
                )
            yield bytes(part)

    def delete(self, digest: str) -> None:
        """Delete the object of a blob."""
        with _errors("delete"), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._bucket, _key(digest))

    def blobs(self, after: str = "") -> Iterator[StoredBlob]:
        """Yield the blobs in order."""
        pages = obstore.list(self._bucket, offset=_key(after) if after else None)
        while True:
            with _errors("list"):
                page = next(pages, None)
            if page is None:
                return
            for item in page:
                digest = item["path"].rpartition("/")[2]
                if DIGEST.fullmatch(digest):
                    age = time.time() - item["last_modified"].timestamp()
                    yield StoredBlob(digest, age)


@contextlib.contextmanager
def _errors(operation: str, *others: type[Exception]) -> Iterator[None]:
    """Raise StoreUnavailable for what the service or the connection to it refuses."""
    with store_errors(operation, BaseError, PermissionError, *others):
        yield


def _key(digest: str) -> str:
    if not DIGEST.fullmatch(digest):
        raise BlobNotFound(digest)
    return f"{digest[:2]}/{digest[2:4]}/{digest}"
