"""Deletes blobs that no artifact needs, without taking one from a row that is being stored."""

from sqlalchemy import Connection

from overnight_server.artifact_store.store import ArtifactStore
from overnight_server.store.statements import statement


def needed_blobs(tx: Connection, digests: list[str]) -> set[str]:
    """Return those of the blobs that an artifact of any user needs."""
    return set(tx.execute(statement("needed_blobs"), {"digests": digests}).scalars())


def delete_if_unneeded(store: ArtifactStore, digest: str, tx: Connection) -> bool:
    """Delete a blob that no row needs; return whether it was deleted.

    Whoever stores a row for it waits until the transaction ends, and puts it again.
    """
    tx.execute(statement("lock_blob"), {"digest": digest})
    if needed_blobs(tx, [digest]):
        return False
    store.delete(digest)
    return True
