"""The clock of a demo: a database whose time a program moves, so that a night passes in minutes."""

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, text

from overnight_server.store.database_clock import DATABASE_CLOCK
from overnight_server.store.db import Db

SCRIPT = Path(__file__).with_suffix(".sql")
_HAS_TASKS = "SELECT EXISTS (SELECT FROM tasks) OR to_regclass('demo_clock') IS NOT NULL"
_SET = """
WITH removed AS (DELETE FROM demo_clock)
INSERT INTO demo_clock (at, set_at, goes_on) VALUES (:at, statement_timestamp(), :goes_on)
"""


class NotADemo(Exception):
    """The database has tasks already, so its clock must not be changed."""


class DemoClock:
    """Sets the clock of a new database; `db` has the rights of the owner of the schema."""

    def __init__(self, db: Db, at: datetime) -> None:
        """Replace the clock of an empty database; raise NotADemo for any other."""
        self._db = db
        db.atomically(_replace_clock)
        self.stop_at(at)

    def stop_at(self, at: datetime) -> None:
        """Let the clock stand still at an instant."""
        self._set(at, goes_on=False)

    def go_on_from(self, at: datetime) -> None:
        """Let the clock go on from an instant, as fast as any other."""
        self._set(at, goes_on=True)

    def read(self) -> datetime:
        """Return the instant that the clock shows."""
        found: datetime = self._db.atomically(
            lambda tx: tx.execute(text("SELECT clock()")).scalar_one()
        )
        return found

    def _set(self, at: datetime, *, goes_on: bool) -> None:
        self._db.atomically(_setting(at, goes_on=goes_on))
        # New ids carry the time of the database, by which they are sorted.
        now = time.monotonic()
        DATABASE_CLOCK.observe(at.timestamp(), now, now)


def _setting(at: datetime, *, goes_on: bool) -> Callable[[Connection], None]:
    def work(tx: Connection) -> None:
        tx.execute(text(_SET), {"at": at, "goes_on": goes_on})

    return work


def _replace_clock(tx: Connection) -> None:
    if tx.execute(text(_HAS_TASKS)).scalar_one():
        raise NotADemo("the database has tasks, or was a demo before: a demo needs a new one")
    tx.exec_driver_sql(SCRIPT.read_text())
