"""Deletes artifacts of runs that ended without making them visible."""

from datetime import timedelta

from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement

BATCH = 100
# How long an operator can look at what a lost run had stored.
KEPT = timedelta(hours=24)


def delete_stale_artifacts(db: Db) -> int:
    """Delete artifacts that were staged longer than KEPT ago; return how many.

    Those of a run that goes on are kept. A pass ends after some seconds, and the next one goes on.
    """
    params = {"older_than": KEPT, "limit": BATCH}
    total, limit = 0, PassLimit()
    while True:
        deleted = db.atomically(
            lambda tx: int(tx.execute(statement("delete_stale_artifacts"), params).scalar_one())
        )
        total += deleted
        # A batch has rows of one user only, so a small one is not the last.
        if not deleted or limit.is_over:
            return total
