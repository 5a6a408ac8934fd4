"""How long rows are kept, and into which periods the partitions of large tables are divided.

Every table of the database is in one of three lists here: RULES, TABLES_OF_TASKS or NOT_BY_AGE. A
test fails for a table that is in none.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Final

from overnight.models.enums import PlanTier
from overnight_server.domain.lifecycle import State


@dataclass(frozen=True)
class Rule:
    """How many days rows of one table are kept.

    `days` applies unless the setting retention_days names the rule; None keeps the rows forever.
    `setting` is the setting of a rule that has one of its own and is carried out by another sweep.
    The rows of the other rules are selected by the table `retention_rules` of the database.
    """

    name: str
    table: str
    what: str
    days: int | None
    setting: str | None = None
    least: int = 1


TASKS: Final = "tasks"
RULES: Final = (
    Rule(TASKS, "tasks", "ended tasks with their attempts, events and artifacts", 90),
    Rule("inbox", "inbox", "rows of the inbox that were accepted or dropped", 30),
    Rule("refused_inbox", "inbox", "rows of the inbox that were refused", 90),
    Rule("stale_results", "stale_results", "results that came too late", 30),
    Rule("bulk_operations", "bulk_operations", "bulk operations that have ended", 90),
    Rule("notices", "notices", "notices of earlier billing months", 90),
    Rule("deliveries", "notification_deliveries", "delivered notifications", 30),
    Rule("dead_deliveries", "notification_deliveries", "notifications that were given up", 90),
    Rule("notifications", "notifications", "notifications without a delivery", 30),
    Rule("sessions", "sessions", "expired sessions of the dashboard", 7),
    Rule("holds", "holds", "times in which a user or graph was held back", 90, least=31),
    Rule("lane_history", "lane_history", "what the gate saw of a user", 90, least=31),
    Rule("received_hooks", "received_hooks", "webhooks that came in", 30),
    Rule("improvement_tasks", "improvement_tasks", "what improvement rules have filed", 90),
    Rule("worker_sessions", "worker_sessions", "times in which a worker was there", 90, least=31),
    Rule("pauses", "pauses", "pauses that have ended", 365),
    Rule("schedule_fires", "schedule_fires", "outcomes of fire times, but the last of each", 90),
    Rule("hourly_figures", "task_queue_metrics", "what happened in each hour", 1100, least=31),
    Rule("audit_log", "audit_log", "what people did", None, least=30),
    Rule("ledger", "usage_ledger", "hours of earlier months, of deleted tasks", 400, least=62),
    Rule("logs", "log_chunks", "logs of runs", 14, setting="log_retention_days"),
    Rule("failed_logs", "log_chunks", "ends of failed logs", 90, "failed_log_retention_days"),
    Rule("artifacts", "artifacts", "artifacts", 90, setting="artifact_retention_days"),
    Rule("findings", "audit_findings", "ended findings", 90, setting="audit_findings_days"),
)

#: The tables whose rows are deleted with their task or graph.
TABLES_OF_TASKS: Final = frozenset(
    {
        *("attempts", "dag_events", "dag_triggers", "dags", "dead_letters", "events", "spending"),
        *("staged_artifacts", "task_edges"),
    }
)

#: The tables that do not grow with time alone, and what bounds each.
NOT_BY_AGE: Final = {
    "agent_profiles": "one row for each name",
    "agents": "workers that have left are deleted by the sweep `reap`",
    "alembic_version": "one row",
    "api_keys": "people issue them",
    "artifact_usage": "one row for each user",
    "audit_positions": "one row for each area",
    "depth_counters": "one row for each connection",
    "expected_rights": "written by the migration",
    "handled_types": "one row for each type of task",
    "held_locks": "rows of active tasks",
    "http_agents": "people register them",
    "improvement_rules": "people add them",
    "lanes": "one row for each user",
    "legal_moves": "written by the migration",
    "lock_waits": "a database trigger keeps the latest of each user",
    "metric_totals": "one row for each figure and label",
    "notification_channels": "people add them",
    "pools": "one row for each name",
    "priority_changes": "the sweep `metrics` removes them",
    "report_times": "one row for each user",
    "retention_rules": "written by the migration",
    "schedules": "people add them",
    "source_jobs": "one row for each name",
    "sweeps": "one row for each sweep",
    "type_durations": "one row for each type of task",
    "users": "people add them",
    "webhook_sources": "people add them",
}

#: Days for tasks of one plan or in one final state, by name: `tasks.free`, `tasks.cancelled`.
KINDS_OF_TASKS: Final = frozenset(
    f"{TASKS}.{kind}" for kind in [*PlanTier, *(state for state in State if state.is_final)]
)
MOST_DAYS: Final = 36_500


def parse_days(entries: Iterable[str]) -> dict[str, int]:
    """Return the days of entries such as `inbox=30` by name; raise ValueError for other text.

    >>> parse_days(["tasks=60", "tasks.free=30"])
    {'tasks': 60, 'tasks.free': 30}
    """
    least = {rule.name: rule.least for rule in RULES if rule.setting is None}
    days = {}
    for entry in entries:
        name, _, number = entry.partition("=")
        if name not in {*least, *KINDS_OF_TASKS}:
            raise ValueError(f"{name!r} is no rule; rules are {', '.join(sorted(least))}")
        lowest = least.get(name, 1)
        if not number.isdecimal() or not lowest <= int(number) <= MOST_DAYS:
            raise ValueError(f"{entry!r}: {name} needs {lowest} to {MOST_DAYS} days")
        days[name] = int(number)
    return days


def days_of_rules(changed: Mapping[str, int]) -> dict[str, int | None]:
    """Return the days of the rules without a setting of their own, and of kinds of tasks."""
    defaults = {rule.name: rule.days for rule in RULES if rule.setting is None}
    return {**defaults, **changed}


def days_of_tasks(days: Mapping[str, int | None]) -> dict[str, int]:
    """Return those entries that concern tasks."""
    return {
        name: number
        for name, number in days.items()
        if (name == TASKS or name in KINDS_OF_TASKS) and number is not None
    }


#: A table has about so many partitions for the time of its retention. Reading the rows of a task
#: looks at every partition, so they must not become many.
PARTITIONS: Final = 16
#: Partitions are made so long ahead that a failing sweep is noticed before they are missing.
AHEAD: Final = timedelta(days=3)


def partition_period(retention: timedelta) -> timedelta:
    """Return how many days of tasks share one partition.

    >>> [partition_period(timedelta(days=days)).days for days in (1, 14, 90, 365)]
    [1, 1, 5, 22]
    """
    return timedelta(days=max(1, retention.days // PARTITIONS))


def missing_periods(
    now: datetime, covered_until: datetime | None, period: timedelta
) -> Iterator[tuple[datetime, datetime]]:
    """Yield the periods for which partitions are missing, from `covered_until` on.

    A period never begins in the past: its tasks would already have rows in the default partition.
    It ends at midnight in UTC.
    """
    first = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    if covered_until is not None:
        first = max(first, covered_until.astimezone(UTC))
    while first < now + AHEAD + period:
        end = datetime.combine(first.date(), time(), UTC) + period
        yield first, end
        first = end
