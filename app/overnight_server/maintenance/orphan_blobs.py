"""Deletes blobs of the artifact store that no artifact needs.

Such a blob is left by a run that was lost between putting it and storing its row, and by a visible
artifact that was replaced or deleted.
"""

from functools import partial
from itertools import islice

from overnight_server.artifact_store.delete_blobs import delete_if_unneeded, needed_blobs
from overnight_server.artifact_store.store import ArtifactStore
from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
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
            deleted += db.atomically(partial(delete_if_unneeded, store, digest))
        position = page[-1].digest
        if len(page) < BATCH or (limit.is_over and not reads_all):
            break
    set_sweep_position(db, NAME, position if len(page) == BATCH else None)
    return deleted


def _needed(db: Db, digests: list[str]) -> set[str]:
    return db.atomically(lambda tx: needed_blobs(tx, digests))
