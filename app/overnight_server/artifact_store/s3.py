"""An artifact store in a bucket of an S3-compatible service; needs the extra `s3`.

Keys, region and address of the service come from the usual variables: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL; AWS_ALLOW_HTTP for a service without TLS.
"""

import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

import obstore
from obstore.store import S3Store as Bucket

from overnight_server.artifact_store.store import (
    DIGEST,
    PART_BYTES,
    Blob,
    BlobNotFound,
    StoredBlob,
    hashed_copy,
)

if TYPE_CHECKING:
    from obstore import GetOptions


class S3Store:
    """Keeps blobs as objects below `s3://bucket/prefix`."""

    def __init__(self, address: str) -> None:
        self._bucket = Bucket.from_url(address)

    def put(self, content: IO[bytes], *, max_bytes: int) -> Blob:
        """Keep a content; the service confirms it when it is durable."""
        with hashed_copy(content, max_bytes=max_bytes) as (copy, blob):
            obstore.put(self._bucket, _key(blob.digest), copy)
        return blob

    def has(self, digest: str) -> bool:
        """Whether the bucket has the object of a blob."""
        try:
            obstore.head(self._bucket, _key(digest))
        except FileNotFoundError:
            return False
        return True

    def open(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes of a blob."""
        if end is not None and end <= start:
            return iter(())
        options: GetOptions = {"range": {"offset": start} if end is None else (start, end)}
        try:
            found = obstore.get(self._bucket, _key(digest), options=options)
        except FileNotFoundError:
            raise BlobNotFound(digest) from None
        return (bytes(part) for part in found.stream(min_chunk_size=PART_BYTES))

    def delete(self, digest: str) -> None:
        """Delete the object of a blob."""
        obstore.delete(self._bucket, _key(digest))

    def blobs(self, after: str = "") -> Iterator[StoredBlob]:
        """Yield the blobs in order."""
        for page in obstore.list(self._bucket, offset=_key(after) if after else None):
            for item in page:
                digest = item["path"].rpartition("/")[2]
                if DIGEST.fullmatch(digest):
                    age = time.time() - item["last_modified"].timestamp()
                    yield StoredBlob(digest, age)


def _key(digest: str) -> str:
    if not DIGEST.fullmatch(digest):
        raise BlobNotFound(digest)
    return f"{digest[:2]}/{digest[2:4]}/{digest}"
