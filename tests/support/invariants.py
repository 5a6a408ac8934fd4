"""What must hold of every database at every instant, whatever was done to the deployment.

Each invariant is a query for the rows that break it; they stand in `invariants.sql`. `violations`
runs them on one snapshot and returns those that found any: an empty answer is a proof for that
snapshot. The numbers are those of the reliability notes; H-numbers are the deployment's own.

Limits may change in the middle of a run, and a claim is judged by the limits of its own instant.
Call `watch_plans` at the beginning of such a run: it has the database itself keep their history.

Some can only be judged by what the agents wrote down themselves: whether an accepted result was
that of the run that owned the attempt, and whether a run is charged for all that it worked, since
workers measure that. Whoever kept such a record gives it as `recorded_actions`.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, TextClause, text

from overnight_server.domain.ids import TaskId
from overnight_server.domain.lifecycle import legal_moves
from overnight_server.store.db import Db
from tests.support.recorded_actions import RecordedAction

Row = Mapping[str, Any]

FOLDER = Path(__file__).parent
ENTRY = re.compile(r"^-- name: (?P<code>\w+)\n-- (?P<sentence>.+)\n(?P<sql>[^;]+);", re.MULTILINE)
ABSENT = re.compile(r"^-- inapplicable: (?P<code>\w+) .+\n-- (?P<reason>.+)", re.MULTILINE)
# How long expired claims may remain when leases last seconds, also while faults are injected: many
# times what the sweeps need when nothing stops them.
SWEEP_TIME: Final = timedelta(seconds=20)
# For runs in which no plan changes: the limits of now have always been in force, but that whoever
# is shut out may have nothing claimed since.
PLANS_OF_NOW = """
    CREATE TEMP TABLE plan_history ON COMMIT DROP AS
    SELECT 1 AS id, l.user_id, timestamptz '-infinity' AS since,
           u.max_concurrent_agents AS max_active, l.limit_seconds
      FROM lanes l JOIN users u ON u.id = l.user_id
    UNION ALL
    SELECT 2, l.user_id, u.disabled_at, 0, l.limit_seconds
      FROM lanes l JOIN users u ON u.id = l.user_id
     WHERE u.disabled_at IS NOT NULL
"""

# Made once for each connection: some look after every step.
MAKE_ROOM_FOR_DEEDS = """
    CREATE TEMP TABLE IF NOT EXISTS exec_log
           (task_id uuid, epoch int, seal text, seconds numeric, ok boolean) ON COMMIT DELETE ROWS
"""
KEEP_DEEDS = """
    INSERT INTO exec_log
    SELECT * FROM jsonb_populate_recordset(CAST(NULL AS exec_log), CAST(:recorded_actions AS jsonb))
"""

# The deployment plans for a few rows out of many; here whole tables meet, so they meet by hashing.
WHOLE_TABLES = """
    SET LOCAL enable_hashjoin = on;
    SET LOCAL enable_seqscan = on;
    SET LOCAL enable_nestloop = off;
"""


@dataclass(frozen=True)
class Invariant:
    """One thing that always holds: a sentence, and a query for the rows that break it."""

    code: str
    sentence: str
    query: TextClause


LIST: Final = (FOLDER / "invariants.sql").read_text()
INVARIANTS = tuple(
    Invariant(entry["code"], entry["sentence"], text(entry["sql"]))
    for entry in ENTRY.finditer(LIST)
)
# What the reliability notes ask for besides, by its number, and why it cannot be asked here.
INAPPLICABLE: Final = {entry["code"]: entry["reason"] for entry in ABSENT.finditer(LIST)}


def watch_plans(owner: Db) -> None:
    """Have the database keep every user's limits with the instant they came into force."""
    history = (FOLDER / "plan_history.sql").read_text()
    owner.atomically(lambda tx: tx.exec_driver_sql(history))


@dataclass(frozen=True)
class Look:
    """What the one who looks knows, and where it looks.

    `drained` says that everything should have ended, `acked` names what was accepted from
    producers, `patience` how long the sweeps may leave anything lying (without it nobody is
    thought to sweep), and `recorded_actions` all that agents recorded (without it nobody is
    thought to have watched them). `codes` narrows the look to some invariants.
    """

    drained: bool = False
    acked: Collection[TaskId] = ()
    patience: timedelta | None = None
    recorded_actions: Collection[RecordedAction] | None = None
    codes: Collection[str] | None = None


def violations(
    db: Db,
    *,
    drained: bool = False,
    acked: Collection[TaskId] = (),
    patience: timedelta | None = None,
    recorded_actions: Collection[RecordedAction] | None = None,
    codes: Collection[str] | None = None,
) -> dict[str, list[Row]]:
    """Return the rows that break each broken invariant, by its code; nothing if all hold.

    See `Look` for what may be said.
    """
    look = Look(drained, acked, patience, recorded_actions, codes)

    def work(tx: Connection) -> dict[str, list[Row]]:
        tx.exec_driver_sql(WHOLE_TABLES)
        return violations_seen(tx, look)

    # One snapshot for all, so that a busy deployment is judged at one instant.
    return db.atomically(work, one_instant=True)


def violations_seen(tx: Connection, look: Look) -> dict[str, list[Row]]:
    """Return what a transaction sees broken; its own changes count."""
    if tx.execute(text("SELECT to_regclass('plan_history')")).scalar_one() is None:
        tx.exec_driver_sql(PLANS_OF_NOW)
    keep_recorded_actions(tx, look.recorded_actions or ())
    values = {
        "acked": list(look.acked),
        "drained": look.drained,
        "patience": look.patience,
        "watched": look.recorded_actions is not None,
        "moves": [f"{source}>{target}" for source, target in legal_moves()],
    }
    found = {
        one.code: [dict(row) for row in tx.execute(one.query, values).mappings()]
        for one in INVARIANTS
        if look.codes is None or one.code in look.codes
    }
    return {code: rows for code, rows in found.items() if rows}


def keep_recorded_actions(tx: Connection, recorded_actions: Collection[RecordedAction]) -> None:
    """Lay down what agents wrote, for as long as the transaction lasts."""
    tx.exec_driver_sql(MAKE_ROOM_FOR_DEEDS)
    if recorded_actions:
        rows = [asdict(deed) for deed in recorded_actions]
        tx.execute(text(KEEP_DEEDS), {"recorded_actions": json.dumps(rows, default=str)})


def describe_violations(found: Mapping[str, list[Row]]) -> str:
    """Say what was broken, in sentences, with the first few rows of each."""
    sentences = {one.code: one.sentence for one in INVARIANTS}
    return "\n".join(
        f"{code}, {sentences[code]}: {len(rows)} rows, first {rows[:3]}"
        for code, rows in found.items()
    )
