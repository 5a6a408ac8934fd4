"""What the deployment did, hour by hour: rows of the table `task_queue_metrics`."""

from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, func, select

from overnight.models.admin import QueueHour, QueueStatistics
from overnight_server.domain.queue_metrics import Hour, quantile
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

HOUR: Final = timedelta(hours=1)


def queue_statistics(db: Db, *, hours: int) -> QueueStatistics:
    """Return the last full hours and the current one, with hours in which nothing happened."""

    def work(tx: Connection) -> QueueStatistics:
        now: datetime = tx.execute(select(func.clock())).scalar_one()
        last = now.replace(minute=0, second=0, microsecond=0)
        since = last - hours * HOUR
        params = {"first_hour": since, "end_hour": last + HOUR}
        rows = tx.execute(statement("read_metric_hours"), params).mappings()
        found = {row["hour"]: (Hour.of_row(row), row["worker_heartbeat_delay"]) for row in rows}
        total = Hour()
        for hour, _ in found.values():
            total.add(hour)
        delays = [delay for _, delay in found.values() if delay is not None]
        starts = [since + number * HOUR for number in range(hours + 1)]
        return QueueStatistics(
            since_at=since,
            until_at=now,
            total=_shown(since, total, max(delays, default=None)),
            hours=[_shown(start, *found.get(start, (Hour(), None))) for start in starts],
        )

    return db.atomically(work)


def _shown(start: datetime, hour: Hour, delay: float | None) -> QueueHour:
    columns: dict[str, Any] = {
        name: getattr(hour, name) for name in QueueHour.model_fields if hasattr(hour, name)
    }
    return QueueHour(
        **{**columns, "cost_usd": float(hour.cost_usd)},
        hour=start,
        worker_heartbeat_delay=delay,
        error_rates_per_agent=hour.error_rates(),
        wait_p50=quantile(hour.waits, 0.5),
        wait_p95=quantile(hour.waits, 0.95),
    )
