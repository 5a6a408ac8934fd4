"""Deletes the logs of runs that are older than their retention."""

from datetime import timedelta

from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement

# Of chunks, each up to 16 KB.
BATCH = 500


def delete_old_logs(db: Db, *, retention: timedelta) -> int:
    """Delete chunks that were written longer ago than `retention`; return how many.

    A pass ends after some seconds, and the next one goes on. Chunks that another pass is deleting
    are left to it.
    """
    params = {"older_than": retention, "limit": BATCH}
    total, limit = 0, PassLimit()
    while True:
        deleted = db.atomically(
            lambda tx: int(tx.execute(statement("delete_old_logs"), params).scalar_one())
        )
        total += deleted
        if deleted < BATCH or limit.is_over:
            return total
