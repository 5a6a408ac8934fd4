"""Adds the partitions of large tables before tasks need them, and lists those that are old."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row

from overnight_server.domain.retention import missing_periods, partition_period
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

ADDED = "added"
DROPPED = "dropped"
# Another session uses the table; the next pass tries again.
BUSY = "busy"
# More rows of the partition must be kept than may be moved.
IN_USE = "in use"


def add_partitions(db: Db, table: str, *, retention: timedelta) -> int:
    """Add the partitions that the next days need; return how many.

    Rows for which there is none go into the table's default partition, so a pass that fails does
    no harm.
    """
    rows = db.atomically(lambda tx: _partitions(tx, table))
    covered_until = max((row.end_at for row in rows if row.name), default=None)
    added = 0
    for first_at, end_at in missing_periods(
        rows[0].now, covered_until, partition_period(retention)
    ):
        params = {"table_name": table, "first_at": first_at, "end_at": end_at}
        result = db.atomically(partial(_add, params))
        if result == BUSY:
            break
        added += result == ADDED
    return added


def old_partitions(db: Db, table: str, *, age: timedelta) -> Iterator[str]:
    """Yield the partitions whose tasks were all created longer than `age` ago, oldest first."""
    for row in db.atomically(lambda tx: _partitions(tx, table)):
        if row.name and row.end_at <= row.now - age:
            yield row.name


def _add(params: Mapping[str, object], tx: Connection) -> str:
    return str(tx.execute(statement("add_partition"), params).scalar_one())


def _partitions(tx: Connection, table: str) -> list[Row[Any]]:
    return list(tx.execute(statement("partitions_of"), {"table_name": table}))
