"""One word to Postgres from a process that may keep neither connection nor thread.

The main process of a pool forks at any time; what it held open, its children would share.
"""

from collections.abc import Callable
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from overnight_server.settings import Settings
from overnight_server.store.db import DISPATCHER, DatabaseUnreachable, Db, Timeouts
from overnight_server.telemetry import Event, emit
from overnight_worker.resources import database_url

# The main loop stands still meanwhile.
PATIENCE: Final = Timeouts(connect=2, statement=2.0, lock=1.0, idle=2.0)


def say(settings: Settings, word: Callable[[Db], object]) -> bool:
    """Open a connection, say the word and close; False if Postgres could not be asked."""
    db = Db.connect(
        database_url(settings),
        role=DISPATCHER,
        application_name="overnight-worker-main",
        pool_size=1,
        timeouts=PATIENCE,
    )
    try:
        word(db)
    except (DatabaseUnreachable, SQLAlchemyError) as error:
        emit(Event.DATABASE_UNREACHABLE, error=error)
        return False
    finally:
        db.close()
    return True
