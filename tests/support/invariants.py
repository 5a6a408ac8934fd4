"""Invariants: conditions that every database of a deployment meets at every instant.

Most of them are the rules that the audit of a deployment checks, under the names of these rules.
The others are queries in `invariants.sql`: codes with I are those of the reliability notes; codes
with H are additional. Each returns the rows that violate it. `violations` executes all of them on
one snapshot and returns those with rows; an empty result proves that the snapshot is correct.

A claim is judged by the plan limits at the time of the claim. If limits change during a test, call
`record_plan_history` at its start: a trigger then records each change.

Two invariants need the record that handlers write of their own runs: whether an accepted result
belongs to the run that owned the attempt, and whether a run is charged for all of its working
time, which workers measure. A test that has such a record passes it as `recorded_actions`.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, text

from overnight_server.domain.audit_rules import AUDIT_RULES
from overnight_server.domain.ids import TaskId
from overnight_server.maintenance.audit_checks import CHECKS, FIRST_ID, LAST_ID, AuditCheck
from overnight_server.store.db import Db
from tests.support.recorded_actions import RecordedAction

Row = Mapping[str, Any]

FOLDER = Path(__file__).parent
ENTRY = re.compile(r"^-- name: (?P<code>\w+)\n-- (?P<sentence>.+)\n(?P<sql>[^;]+);", re.MULTILINE)
ABSENT = re.compile(r"^-- inapplicable: (?P<code>\w+) .+\n-- (?P<reason>.+)", re.MULTILINE)
# How long an expired claim may remain if leases last seconds, also while faults are injected. It is
# many times what the sweeps need without faults.
SWEEP_TIME: Final = timedelta(seconds=20)
# For tests in which no plan changes: the current limits apply to all claims. A disabled user may
# have no claim since the time of the disabling.
CURRENT_PLANS = """
    CREATE TEMP TABLE plan_history ON COMMIT DROP AS
    SELECT 1 AS id, l.user_id, timestamptz '-infinity' AS since,
           u.max_concurrent_agents AS max_active, l.limit_seconds
      FROM lanes l JOIN users u ON u.id = l.user_id
    UNION ALL
    SELECT 2, l.user_id, u.disabled_at, 0, l.limit_seconds
      FROM lanes l JOIN users u ON u.id = l.user_id
     WHERE u.disabled_at IS NOT NULL
"""

# Created once per connection, because some tests check the invariants after every step.
CREATE_EXEC_LOG = """
    CREATE TEMP TABLE IF NOT EXISTS exec_log
           (task_id uuid, epoch int, token_suffix text, seconds numeric, ok boolean)
        ON COMMIT DELETE ROWS
"""
INSERT_EXEC_LOG = """
    INSERT INTO exec_log
    SELECT * FROM jsonb_populate_recordset(CAST(NULL AS exec_log), CAST(:recorded_actions AS jsonb))
"""

# The server's settings favour plans for few rows; these queries join whole tables by hash.
PLANNER_SETTINGS = """
    SET LOCAL enable_hashjoin = on;
    SET LOCAL enable_seqscan = on;
    SET LOCAL enable_nestloop = off;
"""


@dataclass(frozen=True)
class Invariant:
    """One invariant: its code, a sentence about it, and how the rows that violate it are found."""

    code: str
    sentence: str
    find: Callable[[Connection, Mapping[str, object]], list[Row]]


def _query(sql: str) -> Callable[[Connection, Mapping[str, object]], list[Row]]:
    clause = text(sql)
    return lambda tx, values: [dict(row) for row in tx.execute(clause, values).mappings()]


def _check(check: AuditCheck) -> Callable[[Connection, Mapping[str, object]], list[Row]]:
    return lambda tx, _: [asdict(violation) for violation in check.find(tx, FIRST_ID, LAST_ID)]


LIST: Final = (FOLDER / "invariants.sql").read_text()
INVARIANTS = tuple(
    Invariant(entry["code"], entry["sentence"], _query(entry["sql"]))
    for entry in ENTRY.finditer(LIST)
) + tuple(
    Invariant(check.rule, AUDIT_RULES[check.rule].problem, _check(check))
    for check in CHECKS.values()
)
# Invariants of the reliability notes that the audit checks, with the rules that do.
CHECKED_BY_AUDIT: Final = {
    "I03": {"completions"},
    "I04": {"attempt_numbers"},
    "I05": {"attempt_times"},
    "I09": {"claims"},
    "I11": {"early_claims"},
    "I12": {"unmet_counts", "edges", "cancel_reasons"},
    "I13": {"graph_cycle"},
    "I14": {"graph_counters"},
    "I15": {"owners"},
    "I18": {"events"},
    "I19": {"dead_letters"},
}
# Invariants of the reliability notes that have no subject in this system, with the reason.
INAPPLICABLE: Final = {entry["code"]: entry["reason"] for entry in ABSENT.finditer(LIST)}


def record_plan_history(owner: Db) -> None:
    """Create a trigger that records each user's plan limits with the time of each change."""
    history = (FOLDER / "plan_history.sql").read_text()
    owner.atomically(lambda tx: tx.exec_driver_sql(history))


@dataclass(frozen=True)
class CheckOptions:
    """What is known about the history, and which invariants are checked.

    `drained`: every task must have ended. `acked`: the tasks whose submission was acknowledged.
    `sweep_time`: how long an expired claim or a due retry may remain; None if no sweep runs.
    `recorded_actions`: the handlers' record; None if there is none. `codes`: the invariants to
    check; None for all.
    """

    drained: bool = False
    acked: Collection[TaskId] = ()
    sweep_time: timedelta | None = None
    recorded_actions: Collection[RecordedAction] | None = None
    codes: Collection[str] | None = None


def violations(
    db: Db,
    *,
    drained: bool = False,
    acked: Collection[TaskId] = (),
    sweep_time: timedelta | None = None,
    recorded_actions: Collection[RecordedAction] | None = None,
    codes: Collection[str] | None = None,
) -> dict[str, list[Row]]:
    """Return the rows that violate each violated invariant, by its code; empty if all hold.

    `CheckOptions` describes the arguments.
    """
    options = CheckOptions(drained, acked, sweep_time, recorded_actions, codes)

    def work(tx: Connection) -> dict[str, list[Row]]:
        tx.exec_driver_sql(PLANNER_SETTINGS)
        return violations_in(tx, options)

    # One snapshot for all queries: a busy deployment is judged at one instant.
    return db.atomically(work, one_instant=True)


def violations_in(tx: Connection, options: CheckOptions) -> dict[str, list[Row]]:
    """Return the violations that a transaction sees, including those it made itself."""
    if tx.execute(text("SELECT to_regclass('plan_history')")).scalar_one() is None:
        tx.exec_driver_sql(CURRENT_PLANS)
    insert_recorded_actions(tx, options.recorded_actions or ())
    values = {
        "acked": list(options.acked),
        "drained": options.drained,
        "sweep_time": options.sweep_time,
        "has_record": options.recorded_actions is not None,
    }
    results: dict[str, list[Row]] = {
        invariant.code: invariant.find(tx, values)
        for invariant in INVARIANTS
        if options.codes is None or invariant.code in options.codes
    }
    return {code: rows for code, rows in results.items() if rows}


def insert_recorded_actions(tx: Connection, recorded_actions: Collection[RecordedAction]) -> None:
    """Put the handlers' record into a temporary table of this transaction."""
    tx.exec_driver_sql(CREATE_EXEC_LOG)
    if recorded_actions:
        rows = [asdict(action) for action in recorded_actions]
        tx.execute(text(INSERT_EXEC_LOG), {"recorded_actions": json.dumps(rows, default=str)})


def describe_violations(violated: Mapping[str, list[Row]]) -> str:
    """Return a line for each violated invariant: its sentence and its first three rows."""
    sentences = {invariant.code: invariant.sentence for invariant in INVARIANTS}
    return "\n".join(
        f"{code}, {sentences[code]}: {len(rows)} rows, first {rows[:3]}"
        for code, rows in violated.items()
    )
