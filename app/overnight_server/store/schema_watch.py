"""Ends a running process when a migration leaves it a schema that it does not know.

Most migrations serve the processes of the version before, which then go on. Before one that does
not, `overnight migrate` says so in the database and waits; each process notices, hands its runs
back and ends. When it is started again, it is refused with what to do.
"""

import os
import signal
import threading
import time

from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from overnight_server.store.db import Timeouts, connect_args, driver_url
from overnight_server.store.schema_fingerprint import SchemaMismatch, check_schema
from overnight_server.telemetry import LogEvent, emit

#: How often a process compares; `migrate.LEAVE_SECONDS` is several times as long.
CHECK_SECONDS = 10.0


def watch_schema(url: str, role: str) -> None:
    """Compare in a thread of its own until the process ends; not for a process that forks."""
    threading.Thread(target=_watch, args=(url, role), name="schema-watch", daemon=True).start()


def _watch(url: str, role: str) -> None:
    while not end_on_mismatch(url, role):
        time.sleep(CHECK_SECONDS)


def end_on_mismatch(url: str, role: str) -> bool:
    """End this process in order if the database does not serve its schema any more."""
    engine = create_engine(
        driver_url(url),
        poolclass=NullPool,
        hide_parameters=True,
        connect_args=connect_args("overnight-schema-watch", Timeouts(), {}),
    )
    try:
        with engine.connect() as connection:
            check_schema(connection)
    except SchemaMismatch as error:
        emit(LogEvent.SCHEMA_CHANGED, role=role, error=f"{error}. {error.advice}")
        os.kill(os.getpid(), signal.SIGTERM)
        return True
    except SQLAlchemyError:
        # An outage; everything else in this process reports it.
        return False
    return False
