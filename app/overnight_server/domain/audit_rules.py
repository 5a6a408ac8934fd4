"""The rules that the audit checks: what a broken one means, and what a person does about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from overnight_server.domain.ids import show_bulk, show_dag, show_task, show_trigger


class FindingStatus(StrEnum):
    """What became of a finding."""

    OPEN = "open"
    ACCEPTED = "accepted"
    REPAIRED = "repaired"
    GONE = "gone"


class SubjectKind(StrEnum):
    """What a rule is about."""

    USER = "user"
    POOL = "pool"
    QUEUE = "queue"
    GRAPH = "graph"
    TASK = "task"
    BULK = "bulk operation"


@dataclass(frozen=True)
class AuditRule:
    """One rule: what it is about, how it is broken, as a sentence, and what a person does.

    `is_repaired`: the audit repairs the rows itself, because the right values are certain.
    """

    kind: SubjectKind
    problem: str
    advice: str
    is_repaired: bool = False


# The advice for what the audit has repaired: its cause is a bug, or somebody who wrote to the
# database by hand.
REPORT: Final = "Nothing: it was repaired. Find out who wrote to the database, or report the bug."
LEDGER: Final = (
    "Compare the run's log with the ledger, correct the user's hours with `overnight user hours`,"
    " and accept the finding."
)
HISTORY: Final = (
    "Nothing can be repaired: rows of the past are missing or were changed. Compare with a backup,"
    " find out who wrote to the database, and accept the finding."
)
STUCK: Final = (
    "Look at the task with `overnight get`. If it can never start, cancel it and submit it again;"
    " if it ran too early, check its output. Then accept the finding."
)

AUDIT_RULES: Final[dict[str, AuditRule]] = {
    "lane_missing": AuditRule(
        SubjectKind.USER,
        "a user has no lane, or a lane has no user",
        "None of the user's tasks can start. Restore the row from a backup.",
    ),
    "lane_counters": AuditRule(
        SubjectKind.USER,
        "the counters of a lane differ from the user's rows",
        REPORT,
        is_repaired=True,
    ),
    "lane_limits": AuditRule(
        SubjectKind.USER, "the limits of a lane are not those of its user", REPORT, is_repaired=True
    ),
    "leaked_locks": AuditRule(
        SubjectKind.USER, "a lock is held by a task that is not active", REPORT, is_repaired=True
    ),
    "lane_pauses": AuditRule(
        SubjectKind.USER,
        "a user is marked as paused without a pause, or the other way round",
        "Set both again: `overnight pause --user NAME`, then `overnight resume --user NAME`.",
    ),
    "pool_pauses": AuditRule(
        SubjectKind.POOL,
        "a pool is marked as paused without a pause, or the other way round",
        "Set both again: `overnight pause --pool NAME`, then `overnight resume --pool NAME`.",
    ),
    "queue_depth": AuditRule(
        SubjectKind.QUEUE,
        "the number of waiting tasks of all users was wrong",
        REPORT,
        is_repaired=True,
    ),
    "graph_counters": AuditRule(
        SubjectKind.GRAPH, "the counters of a graph differ from its tasks", REPORT, is_repaired=True
    ),
    "graph_cycle": AuditRule(
        SubjectKind.GRAPH,
        "the edges of a graph form a cycle",
        "Its tasks can never start: cancel the graph.",
    ),
    "triggers": AuditRule(
        SubjectKind.GRAPH,
        "a trigger did not become due with its graph, or submitted a graph of another user",
        "Remove the trigger if it has not fired, and add it again; otherwise accept the finding.",
    ),
    "claims": AuditRule(
        SubjectKind.TASK,
        "the claim of a task and its open attempt differ",
        "Look at the task with `overnight get`. If no worker runs it, cancel it and submit it"
        " again. Then accept the finding.",
    ),
    "missing_locks": AuditRule(
        SubjectKind.TASK, "an active task does not hold one of its locks", REPORT, is_repaired=True
    ),
    "completions": AuditRule(
        SubjectKind.TASK, "a task completed more than once, or without a completed attempt", HISTORY
    ),
    "attempt_numbers": AuditRule(
        SubjectKind.TASK, "the attempts of a task have a gap or were counted wrong", HISTORY
    ),
    "attempt_times": AuditRule(
        SubjectKind.TASK, "the attempts of a task overlap or have impossible times", HISTORY
    ),
    "early_claims": AuditRule(
        SubjectKind.TASK, "a task was claimed before its parents had ended", HISTORY
    ),
    "unmet_counts": AuditRule(
        SubjectKind.TASK, "the count of unmet dependencies of a task is wrong", STUCK
    ),
    "edges": AuditRule(
        SubjectKind.TASK,
        "a dependency is satisfied by mistake, or is not although it is met",
        STUCK,
    ),
    "cancel_reasons": AuditRule(
        SubjectKind.TASK,
        "a task was cancelled because of a parent that it does not have",
        "Retry the task if it should run, or accept the finding.",
    ),
    "events": AuditRule(
        SubjectKind.TASK,
        "the history of a task has a gap, an illegal move, or ends in another state",
        HISTORY,
    ),
    "dead_letters": AuditRule(
        SubjectKind.TASK, "a task and its dead letters contradict each other", HISTORY
    ),
    "owners": AuditRule(
        SubjectKind.TASK,
        "a row names a task that does not exist, or another user or graph than its task",
        HISTORY,
    ),
    "charges": AuditRule(
        SubjectKind.TASK,
        "a run was charged twice, too much, not at all, or without an attempt",
        LEDGER,
    ),
    "charge_months": AuditRule(
        SubjectKind.TASK,
        "a charge is in the wrong billing month, or a refund differs from its charge",
        LEDGER,
    ),
    "costs": AuditRule(
        SubjectKind.TASK,
        "the cost of a task or an attempt is not the sum of what was recorded",
        "Compare the run's log with the spending rows; raise the budget if a task stopped for it."
        " Then accept the finding.",
    ),
    "task_budgets": AuditRule(
        SubjectKind.TASK,
        "a task that must not run has money reserved, or waits for a budget without a cause",
        "Look at the task with `overnight get`; approve its budget, or cancel it and submit it"
        " again.",
    ),
    "bulk_counters": AuditRule(
        SubjectKind.BULK,
        "the counters of a bulk operation do not add up",
        "Repeat the operation if tasks were left out, and accept the finding.",
    ),
    "artifact_usage": AuditRule(
        SubjectKind.USER,
        "the number or size of a user's artifacts was counted wrong",
        REPORT,
        is_repaired=True,
    ),
}

# How ids in the subject and in the detail of a finding are written for people.
SHOW_SUBJECT: Final[Mapping[SubjectKind, Callable[[UUID], str]]] = {
    SubjectKind.GRAPH: show_dag,
    SubjectKind.TASK: show_task,
    SubjectKind.BULK: show_bulk,
}
SHOW_DETAIL: Final[Mapping[str, Callable[[UUID], str]]] = {
    "task_id": show_task,
    "parent_id": show_task,
    "dag_id": show_dag,
    "fired_dag_id": show_dag,
    "trigger_id": show_trigger,
}


def show_subject(rule: str, subject: str) -> str:
    """Return the subject of a finding as people write it; that of an unknown rule as it is."""
    known = AUDIT_RULES.get(rule)
    show = None if known is None else SHOW_SUBJECT.get(known.kind)
    return subject if show is None else show(UUID(subject))


def show_detail(detail: Mapping[str, object]) -> dict[str, object]:
    """Return what was found, with ids as people write them."""
    return {
        name: SHOW_DETAIL[name](UUID(str(value)))
        if name in SHOW_DETAIL and value is not None
        else [show_task(UUID(str(task))) for task in value]
        if name == "tasks" and isinstance(value, list)
        else value
        for name, value in detail.items()
    }
