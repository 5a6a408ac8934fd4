"""The metrics of the deployment: every name, its labels, and its values at this moment.

One transaction reads them all. It reads sums that the sweep `metrics` keeps, and what indexes hold
of active tasks and open rows, so a scrape costs the same however many tasks wait.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from sqlalchemy import Connection

from overnight_server.domain.notifications import ENDED_BY_USERS
from overnight_server.domain.queue_metrics import MAX_LABEL_SETS, OTHER, Hour, quantile
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

#: Of rows that a count of something unbounded reads; a larger number is reported as this one.
MOST_COUNTED: Final = 10_000
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
HOUR: Final = timedelta(hours=1)

NO_FOLDERS: Final[Mapping[str, Path]] = MappingProxyType({})

Sample = tuple[Sequence[str], float]


@dataclass(frozen=True)
class Metric:
    """One name that `/metrics` serves."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: Literal["counter", "gauge"] = "gauge"


def _table(*metrics: Metric) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


#: Every metric; docs/operations/metrics.md explains them, and a test compares the two.
METRICS: Final = _table(
    Metric("task_queue_depth", "Open tasks.", ("status", "priority_tier")),
    Metric("task_queue_wait_seconds", "Waits of claims of this and the last hour.", ("quantile",)),
    Metric("tasks_created_total", "Tasks that were submitted.", kind="counter"),
    Metric("tasks_completed_total", "Tasks that completed.", ("type",), "counter"),
    Metric("tasks_failed_total", "Failed runs, and tasks that never ran.", ("reason",), "counter"),
    Metric("tasks_dead_lettered_total", "Tasks that became dead letters.", kind="counter"),
    Metric("tasks_cancelled_total", "Tasks that were cancelled.", kind="counter"),
    Metric("overnight_claims_total", "Claims of tasks.", kind="counter"),
    Metric("overnight_runs_settled_total", "Claims that ended.", ("outcome",), "counter"),
    Metric("overnight_sandbox_runs_total", "Runs in sandboxes.", ("kind", "result"), "counter"),
    Metric("task_cost_usd", "What ended runs cost, in sum.", ("type", "agent", "model")),
    Metric("daily_spend_usd", "What runs cost since midnight in UTC."),
    Metric("budget_remaining_usd", "What is left of the budget of an agent.", ("agent",)),
    Metric("agent_utilization", "The share of an agent's slots in use.", ("agent_id",)),
    Metric("agent_heartbeat_misses_total", "Lost runs.", ("agent_id",), "counter"),
    Metric("agent_claim_success_rate", "Completed among ended runs.", ("agent_id",)),
    Metric("overnight_agent_silence_seconds", "Since the last heartbeat.", ("agent_id",)),
    Metric("overnight_agent_overdue_seconds", "How long a heartbeat is overdue.", ("agent_id",)),
    Metric("overnight_slots", "Slots of live workers and agents."),
    Metric("overnight_slots_used", "Slots in use."),
    Metric("overnight_oldest_ready_seconds", "The longest wait of a next task that may start."),
    Metric("overnight_dispatch_lag_seconds", "The same while a slot is free for it."),
    Metric("overnight_oldest_unstarted_claim_seconds", "The oldest claim that is not started."),
    Metric("overnight_lease_past_due_seconds", "How long the oldest expired lease is over."),
    Metric("overnight_sweep_age_seconds", "Since the end of the last pass.", ("sweep",)),
    Metric("overnight_inbox_rows", "Rows of the inbox that wait."),
    Metric("overnight_outbox_deliveries", "Notifications that are to be sent."),
    Metric("overnight_outbox_lag_seconds", "How long the oldest notification is overdue."),
    Metric("overnight_outbox_dead_deliveries", "Notifications given up within an hour."),
    Metric("overnight_oldest_xmin_transactions", "The age of the oldest snapshot in Postgres."),
    Metric("overnight_database_bytes", "The size of the database."),
    Metric("overnight_disk_free_ratio", "The free share of a file system.", ("place",)),
)
# The metric of each sum that the sweep keeps.
TOTALS: Final = {
    "depth": "task_queue_depth",
    "created": "tasks_created_total",
    "completed": "tasks_completed_total",
    "failed": "tasks_failed_total",
    "dead_lettered": "tasks_dead_lettered_total",
    "cancelled": "tasks_cancelled_total",
    "claimed": "overnight_claims_total",
    "settled": "overnight_runs_settled_total",
    "sandbox": "overnight_sandbox_runs_total",
    "cost": "task_cost_usd",
    "lost": "agent_heartbeat_misses_total",
}
# The metric of each figure that is read at this moment.
LIVE: Final = {
    "slots": "overnight_slots",
    "slots_used": "overnight_slots_used",
    "oldest_ready": "overnight_oldest_ready_seconds",
    "dispatch_lag": "overnight_dispatch_lag_seconds",
    "oldest_unstarted": "overnight_oldest_unstarted_claim_seconds",
    "lease_past_due": "overnight_lease_past_due_seconds",
    "inbox": "overnight_inbox_rows",
    "outbox": "overnight_outbox_deliveries",
    "outbox_lag": "overnight_outbox_lag_seconds",
    "dead_deliveries": "overnight_outbox_dead_deliveries",
    "oldest_xmin": "overnight_oldest_xmin_transactions",
    "database_bytes": "overnight_database_bytes",
}


def read_metrics(
    db: Db, *, liveness: timedelta, folders: Mapping[str, Path] = NO_FOLDERS
) -> dict[str, list[Sample]]:
    """Return the samples of every metric, as label values and number, in the order of METRICS.

    `folders` are those whose file systems must not become full.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in METRICS}
    found = db.atomically(lambda tx: list(_read(tx, liveness)), all_users=True)
    for name, labels, value in (*found, *_disks(folders)):
        samples[name].append((labels, float(value)))
    return samples


Found = tuple[str, Sequence[str], float | Decimal]


def _read(tx: Connection, liveness: timedelta) -> Iterator[Found]:
    params = {
        "liveness": liveness.total_seconds(),
        "limit": MOST_COUNTED,
        "ended_by_users": list(ENDED_BY_USERS),
    }
    live = tx.execute(statement("live_metrics"), params).mappings().one()
    for column, name in LIVE.items():
        yield name, (), live[column]
    totals = tx.execute(statement("read_metric_totals")).all()
    # A counter without labels exists from the start: a rate needs its first value.
    missing = {name for name, metric in TOTALS.items() if not METRICS[metric].labels}
    for row in totals:
        missing.discard(row.name)
        yield TOTALS[row.name], row.labels, row.value
    for name in missing:
        yield TOTALS[name], (), 0
    for row in tx.execute(statement("metric_sweeps")):
        yield "overnight_sweep_age_seconds", (row.name,), row.age
    yield from _agents(tx, liveness)
    yield from _hours(tx, live["at"], live["running_usd"])


def _agents(tx: Connection, liveness: timedelta) -> Iterator[Found]:
    """Yield the metrics of agents; those beyond the most names are one agent."""
    params = {"liveness": liveness.total_seconds(), "most": MAX_LABEL_SETS, "other": OTHER}
    for row in tx.execute(statement("metric_agents"), params):
        name = (row.name,)
        yield "agent_utilization", name, float(row.busy) / max(row.slots, 1)
        yield "overnight_agent_silence_seconds", name, row.silent_seconds
        yield "overnight_agent_overdue_seconds", name, row.overdue_seconds
        if row.budget_remaining_usd is not None:
            yield "budget_remaining_usd", name, row.budget_remaining_usd


def _hours(tx: Connection, now: datetime, running_usd: Decimal) -> Iterator[Found]:
    """Yield what follows from this and the last hour, and from the hours since midnight."""
    this_hour = now.replace(minute=0, second=0, microsecond=0)
    midnight = this_hour.replace(hour=0)
    hours = hours_between(tx, min(midnight, this_hour - HOUR), this_hour + HOUR)
    recent = Hour()
    for at, hour in hours.items():
        if at >= this_hour - HOUR:
            recent.add(hour)
    for label, share in QUANTILES.items():
        wait = quantile(recent.waits, share)
        if wait is not None:
            yield "task_queue_wait_seconds", (label,), wait
    for agent, runs in recent.agents.items():
        yield "agent_claim_success_rate", (agent,), runs["completed"] / max(runs["ended"], 1)
    spent = sum((hour.cost_usd for at, hour in hours.items() if at >= midnight), Decimal(0))
    yield "daily_spend_usd", (), spent + running_usd


def hours_between(tx: Connection, since: datetime, until: datetime) -> Mapping[datetime, Hour]:
    """Return what happened in each hour of a period; an hour in which nothing did is missing."""
    rows = tx.execute(
        statement("read_metric_hours"), {"first_hour": since, "end_hour": until}
    ).mappings()
    return {row["hour"]: Hour.of_row(row) for row in rows}


def _disks(folders: Mapping[str, Path]) -> Iterator[Found]:
    """Yield the free share of each folder's file system; a folder that is not there has none."""
    for place, folder in folders.items():
        try:
            usage = shutil.disk_usage(folder)
        except OSError:
            continue
        yield "overnight_disk_free_ratio", (place,), usage.free / max(usage.total, 1)
