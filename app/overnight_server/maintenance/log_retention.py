"""Deletes the logs of runs that are older than their retention."""

from datetime import timedelta
from typing import Final

from overnight_server.maintenance.partitions import DROPPED, IN_USE, old_partitions
from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement

# Of chunks, each up to 16 KB.
BATCH: Final = 500
#: What is kept longer of the log of a run that failed: its end.
FAILURE_TAIL_BYTES: Final = 64 * 1024
# How much of a partition may be moved when it is dropped, while other sessions wait for the table.
MAX_MOVED_BYTES: Final = 32 * 1024 * 1024
# What is in no other partition is deleted chunk by chunk.
DEFAULT_PARTITION: Final = "log_chunks_default"


def delete_old_logs(db: Db, *, retention: timedelta, failures_retention: timedelta) -> int:
    """Delete chunks that were written longer ago than `retention`; return how many.

    A partition is dropped as a whole, and counts as one, as soon as all its tasks are that old. Of
    runs that failed the last FAILURE_TAIL_BYTES are kept for `failures_retention`; they count once
    more, when the rest is deleted. A pass ends after some seconds, and the next one goes on. Chunks
    that another pass is deleting are left to it.
    """
    params = {
        "older_than": retention,
        "failures_older_than": max(retention, failures_retention),
        "tail_bytes": FAILURE_TAIL_BYTES,
        "max_kept_bytes": MAX_MOVED_BYTES,
        "limit": BATCH,
    }
    total, limit = 0, PassLimit()
    for partition in [*old_partitions(db, "log_chunks", age=retention), DEFAULT_PARTITION]:
        total += _delete_from(db, params | {"partition": partition}, limit)
        if limit.is_over:
            break
    return total


def _delete_from(db: Db, params: dict[str, object], limit: PassLimit) -> int:
    """Drop a partition, or delete its old chunks in batches if too much of it must be kept."""
    if params["partition"] != DEFAULT_PARTITION:
        result = db.atomically(lambda tx: tx.scalar(statement("drop_logs_partition"), params))
        if result != IN_USE:
            return int(result == DROPPED)
    total = 0
    while True:
        changed = db.atomically(
            lambda tx: int(tx.execute(statement("delete_old_logs"), params).scalar_one())
        )
        total += changed
        if changed < BATCH or limit.is_over:
            return total
