"""What must hold when the dust has settled: by SQL, by producers' and by agents' own memory."""

import re
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import psycopg2

from app.domain.ids import parse_task, show_task
from app.events.patience import impatient
from tests.chaos.load import Record, by_key
from tests.chaos.stage import PREFIX, Stage
from tests.chaos.tasks import POISON
from tests.chaos.truth import Truth
from tests.support.invariants import SWEPT_WITHIN, told, violations
from tests.support.waiting import wait_until

SHOWN: Final = 5
REPLAYED: Final = 300
# What a process answers SIGTERM with: leaving, or the default while it is still starting.
ORDERLY: Final = {0, 128 + signal.SIGTERM}
# What Postgres may complain of when it and its clients are killed; anything else is ours.
EXPECTED_ERRORS: Final = re.compile(
    r"terminating connection|canceling statement|could not receive data|the database system is"
    r"|unexpected EOF|connection to client lost|could not send data|lock timeout"
    r"|canceling authentication|incomplete startup packet|invalid length of startup packet"
    r"|Connection reset by peer|statement timeout|idle-in-transaction|interrupted; last known up"
)
Findings = dict[str, list[str]]


def invariants(stage: Stage, record: Record, *, drained: bool) -> Findings:
    """Every invariant, on one snapshot; with the agents' own record once it is complete."""
    found = violations(
        stage.house.owner,
        drained=drained,
        acked=[ack.task_id for ack in record.acks],
        patience=SWEPT_WITHIN,
        deeds=Truth.read(stage.truth).deeds() if drained else None,
    )
    return {"invariants": told(found).splitlines()} if found else {}


def promises(stage: Stage, record: Record) -> Findings:
    """What producers were told, against the rows."""
    rows = {
        row["id"]: row
        for row in stage.house.rows("SELECT id, user_id, state, idempotency_key FROM tasks")
    }
    lost = [ack for ack in record.acks if ack.task_id not in rows]
    strange = [
        ack
        for ack in record.acks
        if ack.task_id in rows
        and (rows[ack.task_id]["user_id"], rows[ack.task_id]["idempotency_key"])
        != (ack.user_id, ack.key)
    ]
    revived = {
        row["task_id"] for row in stage.house.rows("SELECT DISTINCT task_id FROM dead_letters")
    }
    uncancelled = [
        show_task(task_id)
        for task_id in record.cancelled
        if rows[task_id]["state"] != "cancelled" and task_id not in revived
    ]
    doubled = [key for key, tasks in by_key(record.acks).items() if len(tasks) > 1]
    return _named(
        {
            "acknowledged and lost": lost,
            "acknowledged under another key or user": strange,
            "two tasks for one key": doubled,
            "cancelled, and yet not": uncancelled,
            "answers that should never be given": record.faults,
        }
    )


def ground_truth(stage: Stage, truth: Truth, blamed_pids: set[int] | None) -> Findings:
    """What the agents themselves wrote down, against the rows, besides the invariants.

    `blamed_pids` are the processes of runs that were killed one by one, for which the house may
    blame the run; None: nobody kept count of them.
    """
    accepted = stage.house.rows(
        "SELECT a.task_id, a.epoch, t.output FROM attempts a JOIN tasks t ON t.id = a.task_id"
        " WHERE a.outcome = 'completed'"
    )
    outputs = {f"{show_task(row['task_id'])}:{row['epoch']}": row["output"] for row in accepted}
    strange = [key for key, output in outputs.items() if (output or {}).get("key") != key]
    return _named(
        {
            "accepted with an output that is not the run's own": strange,
            "poison that ran too often": _too_often(stage, truth),
            "in a bundle again after one crashed": [
                show_task(row["task_id"])
                for row in stage.house.rows(
                    "SELECT task_id FROM attempts WHERE outcome = 'bundle_crash'"
                    " GROUP BY task_id HAVING count(*) > 1"
                )
            ],
            "innocents called poison": (
                [] if blamed_pids is None else _wronged(stage, truth, blamed_pids)
            ),
        }
    )


def _too_often(stage: Stage, truth: Truth) -> list[str]:
    """Tasks that killed their process more often than they had attempts.

    A bundle that crashes spends nobody's attempt, so one such run more is forgiven.
    """
    runs = Counter(parse_task(key.rpartition(":")[0]) for key in truth.starts)
    rows = stage.house.rows(f"SELECT id, max_attempts FROM tasks WHERE type = '{POISON}'")
    return [show_task(row["id"]) for row in rows if runs[row["id"]] > row["max_attempts"] + 1]


def _wronged(stage: Stage, truth: Truth, blamed_pids: set[int]) -> list[str]:
    """Tasks of good character that were called poison, though nobody killed just their process."""
    rows = stage.house.rows(
        "SELECT a.task_id, a.epoch FROM attempts a JOIN tasks t ON t.id = a.task_id"
        f" WHERE a.outcome = 'crash' AND t.type <> '{POISON}'"
        " AND EXISTS (SELECT 1 FROM dead_letters d WHERE d.task_id = t.id AND d.poison_pill)"
    )
    wronged = set()
    for row in rows:
        key = f"{show_task(row['task_id'])}:{row['epoch']}"
        if not any(line["pid"] in blamed_pids for line in truth.starts.get(key, ())):
            wronged.add(key)
    return sorted(wronged)


def falsely_blamed(stage: Stage, truth: Truth, blamed_pids: set[int]) -> list[str]:
    """Runs of innocents recorded as their own crash, though nobody killed just their process."""
    rows = stage.house.rows(
        "SELECT a.task_id, a.epoch FROM attempts a JOIN tasks t ON t.id = a.task_id"
        f" WHERE a.outcome = 'crash' AND t.type NOT IN ('{POISON}', 'stubborn')"
    )
    keys = [f"{show_task(row['task_id'])}:{row['epoch']}" for row in rows]
    # One that died before its handler began may well have been killed alone.
    begun = [key for key in keys if truth.starts.get(key)]
    return [key for key in begun if truth.starts[key][0]["pid"] not in blamed_pids]


def replay(stage: Stage) -> Findings:
    """Send old messages once more, and have them taken with whatever still lies in Redis.

    Nothing may come of it: `moved` says so once the workers have ended, and with them what they
    were still looking at.
    """
    rows = stage.house.rows(
        "SELECT a.task_id, a.epoch, a.token, a.user_id, a.pool, t.type FROM attempts a"
        " JOIN tasks t ON t.id = a.task_id ORDER BY a.claimed_at DESC LIMIT :limit",
        limit=REPLAYED,
    )
    arrived = stage.publish(rows)
    if arrived < len(rows):
        return {"replay": [f"{len(rows) - arrived} messages could not be sent"]}
    try:
        wait_until(lambda: not _queued(stage), timeout=60, what="the queues to be empty", pause=0.2)
    except AssertionError as error:
        return {"replay": [str(error), str(_queued(stage))]}
    return {}


def moved(stage: Stage, before: Mapping[str, object]) -> Findings:
    """What has changed since the footprint `before`, when only old messages were sent."""
    after = footprint(stage)
    return {} if after == before else {"replay changed something": [f"{before} -> {after}"]}


def _queued(stage: Stage) -> dict[str, int]:
    with impatient(stage.redis.url) as client:
        lengths = {
            pool: int(client.llen(f"{PREFIX}agents.{pool}"))  # type: ignore[arg-type]
            for pool in ("default", "night")
        }
    return {pool: length for pool, length in lengths.items() if length}


def footprint(stage: Stage) -> dict[str, object]:
    """How much has happened so far: any move, run, entry or late result adds to it."""
    return dict(
        stage.house.one(
            "SELECT (SELECT sum(revision) FROM tasks) AS revisions,"
            " (SELECT count(*) FROM attempts) AS attempts,"
            " (SELECT count(*) FROM events) AS events,"
            " (SELECT count(*) FROM usage_ledger) AS ledger,"
            " (SELECT count(*) FROM stale_results) AS stale"
        )
    )


def leftovers(stage: Stage, codes: dict[str, int | None]) -> Findings:
    """What is left when every process was asked to go: nothing, and each went in order."""
    deadline = time.monotonic() + 10
    while (others := _backends(stage)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return _named(
        {
            "processes that would not end in order": [
                f"{name}: {code}" for name, code in codes.items() if code not in ORDERLY
            ],
            "surviving processes": stage.survivors(),
            "leaked connections to Postgres": others,
        }
    )


def _backends(stage: Stage) -> list[str]:
    connection = psycopg2.connect(stage.postgres.superuser_url)
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT application_name, state FROM pg_stat_activity"
                " WHERE datname = 'overnight' AND application_name NOT LIKE 'chaos%'"
                " AND pid <> pg_backend_pid()"
            )
            return [f"{name} {state}" for name, state in cursor.fetchall()]
    finally:
        connection.close()


def servers_log(stage: Stage) -> tuple[Findings, Counter[str]]:
    """What Postgres complained of: deadlocks and broken rules are ours."""
    errors: Counter[str] = Counter()
    for line in stage.postgres.log.read_text(errors="replace").splitlines():
        _, found, message = line.partition("ERROR:")
        if found:
            errors[re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+", "…", message.strip())] += 1
    ours = [
        f"{count} times {text}"
        for text, count in errors.items()
        if not EXPECTED_ERRORS.search(text)
    ]
    return _named({"errors in the log of Postgres": ours}), errors


def house_log(stage: Stage) -> tuple[Findings, Counter[str]]:
    """What the processes said: a drifted lane is a bug; the rest is counted."""
    events: Counter[str] = Counter()
    drift, tracebacks = [], []
    for name in stage.posts:
        text = stage.said(name)
        events.update(re.findall(r"\bqueue=(\w+)", text))
        drift += [line for line in text.splitlines() if "queue=lane_drift" in line]
        tracebacks += re.findall(r"^Traceback.*?^(\S.*?)$", text, re.MULTILINE | re.DOTALL)
    for last in tracebacks:
        events[f"traceback: {last[:100]}"] += 1
    return _named({"lanes that drifted": drift}), events


def _named(found: dict[str, Iterable[object]]) -> Findings:
    named = {what: [str(one) for one in ones] for what, ones in found.items()}
    return {
        what: [*ones[:SHOWN], *([f"… and {len(ones) - SHOWN} more"] if len(ones) > SHOWN else [])]
        for what, ones in named.items()
        if ones
    }
