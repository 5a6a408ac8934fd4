"""Tells SQL listeners that tasks are ready: `NOTIFY task_ready`, at most once per second.

A NOTIFY in the transaction of a task would make all commits wait for each other, so the dispatcher
sends it in a transaction of its own, after a pass that left ready tasks.
"""

import math
import time

from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db

TICK_SECONDS = 1.0


class ReadyNotice:
    """Notifies listeners of the channel `task_ready` while a task is ready that may run now."""

    def __init__(self, db: Db) -> None:
        self._db = db
        self._checked_at = -math.inf

    def send(self) -> float:
        """Notify if a task is ready, at most once per tick; return the seconds until it is due.

        That is 0 unless the last check was less than a tick ago; the caller then calls again. The
        notification has no payload, because every login of the database may listen.
        """
        due_in = self._checked_at + TICK_SECONDS - time.monotonic()
        if due_in > 0:
            return due_in
        self._checked_at = time.monotonic()
        self._db.run_batch(StatementCall("notify_task_ready"))
        return 0.0
