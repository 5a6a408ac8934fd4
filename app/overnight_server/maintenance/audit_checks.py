"""The checks of the audit: for each rule, how its violations are found and what repairs them.

An area is a kind of row with an id. Its checks look at all rows with ids in a range, so that a pass
checks a slice of an area, and a second look checks one row.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.graphs import parents_first
from overnight_server.store.statements import statement

FIRST_ID: Final = UUID(int=0)
LAST_ID: Final = UUID(int=2**128 - 1)


@dataclass(frozen=True)
class Violation:
    """A row that breaks a rule: its id or name, the user whose lane covers it, and what is wrong.

    `user_id` is None for a row that belongs to no user.
    """

    subject: str
    user_id: UUID | None
    detail: dict[str, object]


Finder = Callable[[Connection, UUID, UUID], list[Violation]]


@dataclass(frozen=True)
class AuditCheck:
    """How one rule of `AUDIT_RULES` is checked, and what repairs its violations, if anything does.

    `find` returns the violations among the rows with ids in a range. `repair` is called while the
    lane of the violation's user is locked.
    """

    rule: str
    find: Finder
    repair: Callable[[Connection, Violation], None] | None = None


@dataclass(frozen=True)
class AuditArea:
    """A kind of row that is checked in slices, in the order of its ids.

    `slice` is the statement that returns the last id of the next slice. A slice has at most `rows`
    rows and stops after `max_weight` (waiting tasks of lanes, tasks of graphs, events of tasks,
    artifacts of users). A pass begins no further slice of the area after `seconds`.
    """

    name: str
    slice: str
    rows: int
    max_weight: int
    seconds: float
    checks: Sequence[AuditCheck]


def rows_of(name: str) -> Finder:
    """Return a finder that executes the statement `name`."""

    def find(tx: Connection, first: UUID, last: UUID) -> list[Violation]:
        rows = tx.execute(statement(name), {"first": first, "last": last})
        return [Violation(str(row.subject), row.user_id, row.detail or {}) for row in rows]

    return find


def find_pool_pauses(tx: Connection, _first: UUID, _last: UUID) -> list[Violation]:
    """Return the pools whose mark and pause differ; pools are few, so all are checked at once."""
    rows = tx.execute(statement("audit_pool_pauses"))
    return [Violation(row.subject, None, row.detail) for row in rows]


def find_cycles(tx: Connection, first: UUID, last: UUID) -> list[Violation]:
    """Return the graphs with a cycle; the detail has the tasks that are in it or behind it.

    Sorted here, not in SQL: a recursive query would read a chain of a thousand tasks a thousand
    times.
    """
    edges: dict[tuple[UUID, UUID], list[tuple[UUID, UUID]]] = defaultdict(list)
    for row in tx.execute(statement("audit_edges_of_graphs"), {"first": first, "last": last}):
        edges[row.dag_id, row.user_id].append((row.parent_id, row.child_id))
    violations = []
    for (dag_id, user_id), pairs in edges.items():
        tasks = {task for pair in pairs for task in pair}
        if stuck := tasks - set(parents_first(tasks, pairs)):
            shown = sorted(map(str, stuck))[:SHOWN_TASKS]
            violations.append(Violation(str(dag_id), user_id, {"tasks": shown}))
    return violations


def recount_lane(tx: Connection, violation: Violation) -> None:
    """Recompute the counters of a user's lane."""
    tx.execute(statement("recount_lane"), {"user_id": violation.user_id})


def copy_limits(tx: Connection, violation: Violation) -> None:
    """Copy a user's limits to the lane, and derive again what follows from them."""
    tx.execute(statement("copy_limits"), {"user_id": violation.user_id})


def repair_locks(tx: Connection, violation: Violation) -> None:
    """Release the leaked locks of a user, and hold those that active tasks lack."""
    tx.execute(statement("repair_locks"), {"user_id": violation.user_id})


def recount_graph(tx: Connection, violation: Violation) -> None:
    """Recompute the counters of a graph."""
    tx.execute(statement("recount_graph"), {"dag_id": UUID(violation.subject)})


def recount_artifacts(tx: Connection, violation: Violation) -> None:
    """Recompute how many artifacts a user has, and their size."""
    tx.execute(statement("recount_artifact_usage"), {"user_id": violation.user_id})


# The detail of a cycle names at most this many tasks.
SHOWN_TASKS: Final = 20

AREAS: Final = (
    AuditArea(
        "lanes",
        "audit_slice_of_lanes",
        rows=1_000,
        max_weight=50_000,
        seconds=0.3,
        checks=(
            AuditCheck("lane_missing", rows_of("audit_lane_missing")),
            AuditCheck("lane_counters", rows_of("audit_lane_counters"), recount_lane),
            AuditCheck("lane_limits", rows_of("audit_lane_limits"), copy_limits),
            AuditCheck("leaked_locks", rows_of("audit_leaked_locks"), repair_locks),
            AuditCheck("lane_pauses", rows_of("audit_lane_pauses")),
        ),
    ),
    AuditArea(
        "graphs",
        "audit_slice_of_graphs",
        rows=300,
        max_weight=5_000,
        seconds=0.1,
        checks=(
            AuditCheck("graph_counters", rows_of("audit_graph_counters"), recount_graph),
            AuditCheck("graph_cycle", find_cycles),
            AuditCheck("triggers", rows_of("audit_triggers")),
        ),
    ),
    AuditArea(
        "tasks",
        "audit_slice_of_tasks",
        rows=300,
        max_weight=3_000,
        seconds=0.2,
        checks=(
            AuditCheck("claims", rows_of("audit_claims")),
            AuditCheck("missing_locks", rows_of("audit_missing_locks"), repair_locks),
            AuditCheck("completions", rows_of("audit_completions")),
            AuditCheck("attempt_numbers", rows_of("audit_attempt_numbers")),
            AuditCheck("attempt_times", rows_of("audit_attempt_times")),
            AuditCheck("early_claims", rows_of("audit_early_claims")),
            AuditCheck("unmet_counts", rows_of("audit_unmet_counts")),
            AuditCheck("edges", rows_of("audit_edges")),
            AuditCheck("cancel_reasons", rows_of("audit_cancel_reasons")),
            AuditCheck("events", rows_of("audit_events")),
            AuditCheck("dead_letters", rows_of("audit_dead_letters")),
            AuditCheck("owners", rows_of("audit_owners")),
            AuditCheck("charges", rows_of("audit_charges")),
            AuditCheck("charge_months", rows_of("audit_charge_months")),
            AuditCheck("costs", rows_of("audit_costs")),
            AuditCheck("task_budgets", rows_of("audit_task_budgets")),
        ),
    ),
    AuditArea(
        "bulks",
        "audit_slice_of_bulks",
        rows=1_000,
        max_weight=1_000,
        seconds=0.05,
        checks=(AuditCheck("bulk_counters", rows_of("audit_bulks")),),
    ),
    AuditArea(
        "storage",
        "audit_slice_of_storage",
        rows=1_000,
        max_weight=50_000,
        seconds=0.1,
        checks=(AuditCheck("artifact_usage", rows_of("audit_artifact_usage"), recount_artifacts),),
    ),
)
# Checked at the end of each round over the lanes.
POOL_PAUSES: Final = AuditCheck("pool_pauses", find_pool_pauses)
#: Every check by the name of its rule, but the depth of the queue, which is only repaired.
CHECKS: Final = {
    check.rule: check for check in (*(one for area in AREAS for one in area.checks), POOL_PAUSES)
}
