"""Counts events for `/metrics` and the statistics of each hour, each event once.

The sweep keeps the id up to which it has counted, and reads on from there: a settle writes nothing
for it, and no pass reads tasks that wait.
"""

import json
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from sqlalchemy import Connection, func, select

from overnight_server.domain.queue_metrics import (
    Counted,
    EventGroup,
    Hour,
    TotalKey,
    count,
    count_priority_change,
    limit_labels,
)
from overnight_server.event_log.reader import Horizon
from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement

#: The name of the sweep, whose row keeps the position.
SWEEP: Final = "metrics"
# Of events, which one transaction counts.
BATCH: Final = 20_000
# How long a pass waits for transactions that may still write events with small ids.
HORIZON_SECONDS: Final = 1.0
HOUR: Final = timedelta(hours=1)


def count_new_events(db: Db, *, counts_all: bool = False) -> int:
    """Count the events since the last pass and return their number.

    A pass ends after some seconds, unless it `counts_all`, and the next one goes on. While a
    transaction that may have written events stays open for long, nothing is counted: its events
    may have smaller ids than those that are visible.
    """
    db.atomically(lambda tx: tx.execute(statement("note_heartbeat_delay")))
    until = _horizon(db)
    if until is None:
        return 0
    total, limit = 0, PassLimit()
    while True:
        counted, is_done = db.atomically(lambda tx: _count_batch(tx, until))
        total += counted
        if is_done or (limit.is_over and not counts_all):
            return total


def _horizon(db: Db) -> int | None:
    """Return the id up to which no event can still appear; None if writers do not end."""
    horizon, ends_at = Horizon(), time.monotonic() + HORIZON_SECONDS
    while (reached := db.atomically(horizon.advance)) is None and time.monotonic() < ends_at:
        time.sleep(HORIZON_SECONDS / 50)
    return reached


def _count_batch(tx: Connection, until: int) -> tuple[int, bool]:
    """Count one batch; return the number of its events, and whether it was the last one."""
    position = int(tx.execute(statement("lock_metrics_position")).scalar_one() or 0)
    end = min(until, position + BATCH)
    groups = _read_groups(tx, position, end) if end > position else []
    counted = count(groups)
    for row in tx.execute(statement("take_priority_changes")):
        count_priority_change(
            counted.totals, row.state, row.from_priority, row.to_priority, row.number
        )
    _write(tx, counted)
    if end > position:
        tx.execute(statement("set_sweep_position"), {"name": SWEEP, "position": str(end)})
    return sum(group.number for group in groups), end >= until


def _read_groups(tx: Connection, after: int, until: int) -> list[EventGroup]:
    # The index of events by id is a BRIN index. It needs bitmap scans, which PLANNER_OPTIONS
    # disables for this role.
    tx.execute(select(func.set_config("enable_bitmapscan", "on", True)))  # noqa: FBT003 - SQL
    rows = tx.execute(statement("count_events"), {"after": after, "until": until})
    return [EventGroup(**row) for row in rows.mappings()]


def _write(tx: Connection, counted: Counted) -> None:
    sums = counted.sums()
    if sums:
        rows = tx.execute(statement("read_metric_totals"))
        known = {(row.name, tuple(row.labels)) for row in rows}
        tx.execute(statement("add_metric_totals"), {"totals": _totals(limit_labels(sums, known))})
    if counted.hours:
        hours = _with_known(tx, counted.hours)
        rows_of_hours = [hour.as_row(at) for at, hour in hours.items()]
        tx.execute(statement("write_metric_hours"), {"hours": json.dumps(rows_of_hours)})


def _totals(sums: dict[TotalKey, Decimal]) -> str:
    # In one order, so that two passes that follow each other lock rows alike.
    return json.dumps(
        [
            {"name": name, "labels": labels, "value": str(value)}
            for (name, labels), value in sorted(sums.items())
        ]
    )


def _with_known(tx: Connection, new: dict[datetime, Hour]) -> dict[datetime, Hour]:
    """Return the changed hours, with what was counted for them before."""
    rows = tx.execute(
        statement("read_metric_hours"), {"first_hour": min(new), "end_hour": max(new) + HOUR}
    ).mappings()
    known = {row["hour"]: Hour.of_row(row) for row in rows}
    return {at: _sum([known[at], hour] if at in known else [hour]) for at, hour in new.items()}


def _sum(hours: Iterable[Hour]) -> Hour:
    total = Hour()
    for hour in hours:
        total.add(hour)
    return total
