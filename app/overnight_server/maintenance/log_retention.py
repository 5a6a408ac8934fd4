"""Deletes the logs of runs that are older than their retention."""

from datetime import timedelta
from typing import Final

from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement

# Of chunks, each up to 16 KB.
BATCH: Final = 500
#: What is kept longer of the log of a run that failed: its end.
FAILURE_TAIL_BYTES: Final = 64 * 1024


def delete_old_logs(db: Db, *, retention: timedelta, failures_retention: timedelta) -> int:
    """Delete chunks that were written longer ago than `retention`; return how many.

    Of runs that failed the last FAILURE_TAIL_BYTES are kept for `failures_retention`; they count
    once more, when the rest is deleted. A pass ends after some seconds, and the next one goes on.
    Chunks that another pass is deleting are left to it.
    """
    params = {
        "older_than": retention,
        "failures_older_than": max(retention, failures_retention),
        "tail_bytes": FAILURE_TAIL_BYTES,
        "limit": BATCH,
    }
    total, limit = 0, PassLimit()
    while True:
        changed = db.atomically(
            lambda tx: int(tx.execute(statement("delete_old_logs"), params).scalar_one())
        )
        total += changed
        if changed < BATCH or limit.is_over:
            return total
