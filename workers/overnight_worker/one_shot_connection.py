"""A short-lived connection to Postgres for the main process of a worker.

The main process forks at any time, and its pool processes would share a connection that it held
open.
"""

from collections.abc import Callable
from typing import Final

from overnight_server.settings import Settings
from overnight_server.store.db import DATABASE_ERRORS, DISPATCHER, Db, Timeouts
from overnight_server.telemetry import LogEvent, emit
from overnight_worker.resources import database_url

# The main loop stands still meanwhile.
TIMEOUTS: Final = Timeouts(connect=2, statement=2.0, lock=1.0, idle=2.0)


def with_connection(settings: Settings, work: Callable[[Db], object]) -> bool:
    """Open a connection, run `work` with it and close it; False if Postgres failed."""
    db = Db.connect(
        database_url(settings),
        role=DISPATCHER,
        application_name="overnight-worker-main",
        pool_size=1,
        timeouts=TIMEOUTS,
    )
    try:
        work(db)
    except DATABASE_ERRORS as error:
        emit(LogEvent.DATABASE_UNREACHABLE, error=error)
        return False
    finally:
        db.close()
    return True
