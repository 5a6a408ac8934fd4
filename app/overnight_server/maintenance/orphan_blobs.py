"""Deletes blobs of the artifact store that no artifact needs.

Such a blob is left by a run that was lost between putting it and storing its row, and by an
artifact that was replaced.
"""

from functools import partial
from itertools import islice

from sqlalchemy import Connection

from overnight_server.artifact_store.store import ArtifactStore
from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement
from overnight_server.store.sweep_positions import set_sweep_position, sweep_position

NAME = "blobs"
BATCH = 200
# A blob that was put later may belong to a row that is being written.
KEPT_SECONDS = 48 * 3600


def delete_orphan_blobs(db: Db, store: ArtifactStore, *, reads_all: bool = False) -> int:
    """Continue where the last pass stopped; return how many blobs were deleted.

    With `reads_all` this pass reads the whole store.
    """
    position = "" if reads_all else sweep_position(db, NAME) or ""
    deleted, limit, blobs = 0, PassLimit(), store.blobs(position)
    while page := list(islice(blobs, BATCH)):
        old = [blob.digest for blob in page if blob.age_seconds > KEPT_SECONDS]
        for digest in sorted(set(old) - _needed(db, old)):
            deleted += db.atomically(partial(_delete, store, digest))
        position = page[-1].digest
        if len(page) < BATCH or (limit.is_over and not reads_all):
            break
    set_sweep_position(db, NAME, position if len(page) == BATCH else None)
    return deleted


def _needed(db: Db, digests: list[str]) -> set[str]:
    return db.atomically(lambda tx: _needed_in(tx, digests))


def _needed_in(tx: Connection, digests: list[str]) -> set[str]:
    return set(tx.execute(statement("needed_blobs"), {"digests": digests}).scalars())


def _delete(store: ArtifactStore, digest: str, tx: Connection) -> bool:
    """Delete a blob that no row needs; whoever stores a row for it waits, and puts it again."""
    tx.execute(statement("lock_blob"), {"digest": digest})
    if _needed_in(tx, [digest]):
        return False
    store.delete(digest)
    return True
