"""What is counted from events: sums since the start, and what happened in each hour."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Protocol

from overnight_server.domain.lifecycle import State
from overnight_server.domain.priority import tier
from overnight_server.domain.verdicts import CRASH, WORKER_LOST

#: A name has at most so many sets of labels; what comes later counts under OTHER.
MAX_LABEL_SETS: Final = 200
OTHER: Final = "other"
#: The reasons that have a label of their own; handlers may report any other text.
REASONS: Final = frozenset(
    {
        *("timeout", CRASH, "invalid_output", "budget"),
        *("agent_cancelled", "agent_unreachable", "auth_failure", "bad_command"),
        *("deadline_exceeded", "error", "invalid_input", "no_handler", "no_sandbox"),
        *("out_of_memory", "rate_limit", "released_too_often"),
    }
)
RENAMED: Final[Mapping[str, str]] = {"budget_exceeded": "budget", "plan_timeout": "timeout"}
#: Runs that end like this say nothing about the task: a later run does its work.
DEFERRED: Final = "deferred"
BUCKETS_PER_DOUBLING: Final = 4

TotalKey = tuple[str, tuple[str, ...]]


class MetricRow(Protocol):
    """A row of the table `task_queue_metrics`."""

    def __getitem__(self, column: str, /) -> Any: ...  # noqa: ANN401 - the column's type


@dataclass(frozen=True)
class EventGroup:
    """Events that are counted alike: `number` of them, with the sums of their latency and cost."""

    hour: datetime
    from_state: str | None
    to_state: str
    priority: int
    reason: str | None
    outcome: str | None
    sandbox: str | None
    claims: bool
    ends_run: bool
    type: str | None
    agent: str | None
    model: str | None
    wait_bucket: int | None
    number: int
    latency_seconds: float
    cost_usd: Decimal

    @property
    def failure(self) -> str | None:
        """The reason if a run failed, a budget stopped it or its task ended as a dead letter."""
        if self.from_state is None or self.outcome == DEFERRED:
            return None
        if self.to_state == State.DEAD_LETTERED or (
            self.to_state == State.RETRYING and self.ends_run
        ):
            return reason_label(self.reason)
        stopped = self.to_state == State.PENDING and self.reason == "budget_exceeded"
        return "budget" if stopped and self.ends_run else None


@dataclass
class Hour:
    """What happened in one hour; `agents` has the ended, completed and failed runs of each."""

    tasks_created: int = 0
    tasks_completed: int = 0
    tasks_failed: int = 0
    tasks_dead_lettered: int = 0
    tasks_cancelled: int = 0
    latency_seconds: float = 0.0
    cost_usd: Decimal = Decimal(0)
    waits: Counter[int] = field(default_factory=Counter)
    agents: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def average_latency(self) -> float | None:
        """Seconds from the submit to the end of the tasks that completed; None without one."""
        return self.latency_seconds / self.tasks_completed if self.tasks_completed else None

    def error_rates(self) -> dict[str, float]:
        """Return the share of each agent's ended runs that failed."""
        return {
            name: round(runs["failed"] / runs["ended"], 4)
            for name, runs in sorted(self.agents.items())
            if runs["ended"]
        }

    def add(self, other: "Hour") -> None:
        """Add what else happened in the same hour."""
        self.tasks_created += other.tasks_created
        self.tasks_completed += other.tasks_completed
        self.tasks_failed += other.tasks_failed
        self.tasks_dead_lettered += other.tasks_dead_lettered
        self.tasks_cancelled += other.tasks_cancelled
        self.latency_seconds += other.latency_seconds
        self.cost_usd += other.cost_usd
        self.waits.update(other.waits)
        for name, runs in other.agents.items():
            known = name in self.agents or len(self.agents) < MAX_LABEL_SETS
            self.agents.setdefault(name if known else OTHER, Counter()).update(runs)

    def as_row(self, hour: datetime) -> dict[str, Any]:
        """Return the row of the table `task_queue_metrics`."""
        return {
            **vars(self),
            "hour": hour.isoformat(),
            "cost_usd": str(self.cost_usd),
            "waits": {str(bucket): number for bucket, number in self.waits.items()},
            "average_latency": self.average_latency,
            "error_rates_per_agent": self.error_rates(),
        }

    @classmethod
    def of_row(cls, row: MetricRow) -> "Hour":
        """Return what a row of the table `task_queue_metrics` says."""
        return cls(
            tasks_created=row["tasks_created"],
            tasks_completed=row["tasks_completed"],
            tasks_failed=row["tasks_failed"],
            tasks_dead_lettered=row["tasks_dead_lettered"],
            tasks_cancelled=row["tasks_cancelled"],
            latency_seconds=row["latency_seconds"],
            cost_usd=row["cost_usd"],
            waits=Counter({int(bucket): number for bucket, number in row["waits"].items()}),
            agents={name: Counter(runs) for name, runs in row["agents"].items()},
        )


@dataclass
class Counted:
    """What a part of the event log adds to the sums and to the hours."""

    totals: Counter[TotalKey] = field(default_factory=Counter)
    cost: dict[TotalKey, Decimal] = field(default_factory=dict)
    hours: dict[datetime, Hour] = field(default_factory=dict)

    def sums(self) -> dict[TotalKey, Decimal]:
        """Return every sum that changes."""
        changed = {key: Decimal(number) for key, number in self.totals.items() if number}
        return changed | {key: usd for key, usd in self.cost.items() if usd}


def count(groups: Iterable[EventGroup]) -> Counted:
    """Return what these events add."""
    counted = Counted()
    for group in groups:
        _count_moves(counted.totals, group)
        _count_runs(counted, group)
        counted.hours.setdefault(group.hour, Hour()).add(_hour_of(group))
    return counted


def count_priority_change(
    totals: Counter[TotalKey], state: str, before: int, after: int, number: int
) -> None:
    """Move tasks of one state to the tier of their new priority."""
    if not State(state).is_final:
        totals["depth", (state, tier(before))] -= number
        totals["depth", (state, tier(after))] += number


def limit_labels(
    sums: Mapping[TotalKey, Decimal], known: Collection[TotalKey]
) -> dict[TotalKey, Decimal]:
    """Return the sums with new labels replaced by OTHER where a name has too many already."""
    sizes = Counter(name for name, _ in known)
    limited: dict[TotalKey, Decimal] = {}
    for key, value in sums.items():
        name, labels = key
        chosen = key
        if key not in known and key not in limited:
            if sizes[name] >= MAX_LABEL_SETS:
                chosen = (name, tuple(OTHER for _ in labels))
            else:
                sizes[name] += 1
        limited[chosen] = limited.get(chosen, Decimal(0)) + value
    return limited


def reason_label(reason: str | None) -> str:
    """Return the label for a failure reason.

    >>> reason_label("plan_timeout"), reason_label("my_own_error"), reason_label(None)
    ('timeout', 'other', 'error')
    """
    reason = RENAMED.get(reason or "error", reason or "error")
    return reason if reason in REASONS else OTHER


def quantile(waits: Mapping[int, int], share: float) -> float | None:
    """Return the wait in seconds that `share` of the claims did not exceed; None without a claim.

    A bucket is a fifth wide; within it the waits count as evenly spread.

    >>> quantile({}, 0.5), quantile({0: 100}, 0.0), round(quantile({0: 100, 4: 100}, 0.95), 2)
    (None, 1.0, 2.34)
    """
    wanted = share * sum(waits.values())
    for bucket, number in sorted(waits.items()):
        if wanted <= number:
            low = math.exp2(bucket / BUCKETS_PER_DOUBLING)
            high = math.exp2((bucket + 1) / BUCKETS_PER_DOUBLING)
            return low + (high - low) * wanted / number
        wanted -= number
    return None


def _count_moves(totals: Counter[TotalKey], group: EventGroup) -> None:
    number, name = group.number, tier(group.priority)
    if group.from_state is None:
        totals["created", ()] += number
    elif not State(group.from_state).is_final:
        totals["depth", (group.from_state, name)] -= number
    if not State(group.to_state).is_final:
        totals["depth", (group.to_state, name)] += number
    if group.claims:
        totals["claimed", ()] += number
    # A copy of an ended task was not worked on.
    if group.from_state is None:
        return
    if group.to_state == State.COMPLETED:
        totals["completed", (group.type or "",)] += number
    elif group.to_state == State.DEAD_LETTERED:
        totals["dead_lettered", ()] += number
    elif group.to_state == State.CANCELLED:
        totals["cancelled", ()] += number
    if group.failure is not None:
        totals["failed", (group.failure,)] += number


def _count_runs(counted: Counted, group: EventGroup) -> None:
    """Count runs that ended: how, on which agent, what they cost, and in which sandbox."""
    if not group.ends_run:
        return
    totals, number, agent = counted.totals, group.number, group.agent or ""
    totals["settled", (group.outcome or "",)] += number
    if group.outcome == WORKER_LOST:
        totals["lost", (agent,)] += number
    if group.sandbox is not None:
        result = "failed" if group.failure is not None else "ok"
        totals["sandbox", (group.sandbox, result)] += number
    if group.cost_usd:
        key = ("cost", (group.type or "", agent, group.model or ""))
        counted.cost[key] = counted.cost.get(key, Decimal(0)) + group.cost_usd


def _hour_of(group: EventGroup) -> Hour:
    number = group.number
    is_move = group.from_state is not None
    hour = Hour(
        tasks_created=0 if is_move else number,
        tasks_completed=number if is_move and group.to_state == State.COMPLETED else 0,
        tasks_failed=0 if group.failure is None else number,
        tasks_dead_lettered=number if is_move and group.to_state == State.DEAD_LETTERED else 0,
        tasks_cancelled=number if is_move and group.to_state == State.CANCELLED else 0,
        latency_seconds=group.latency_seconds if is_move else 0.0,
        cost_usd=group.cost_usd,
    )
    if group.wait_bucket is not None:
        hour.waits[group.wait_bucket] = number
    if group.ends_run:
        runs = Counter(ended=number)
        if group.to_state == State.COMPLETED:
            runs["completed"] = number
        elif group.failure is not None:
            runs["failed"] = number
        hour.agents[group.agent or ""] = runs
    return hour
