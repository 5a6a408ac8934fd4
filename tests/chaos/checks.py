"""Checks after a chaos run: the rows against invariants, producers' and handlers' records."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from overnight_server.dispatch.celery_settings import EXECUTE
from overnight_server.domain.ids import parse_task, show_task
from overnight_server.wakeups.redis_client import fail_fast_client
from tests.chaos.handler_record import HandlerRecord
from tests.chaos.load import Record, by_key
from tests.chaos.stack import PREFIX, ChaosStack
from tests.chaos.tasks import COMMAND, POISON, REMOTE
from tests.support.invariants import SWEEP_TIME, describe_violations, violations
from tests.support.wait import wait_until

SHOWN: Final = 5
REPLAYED: Final = 300
UNACKED: Final = f"{PREFIX}unacked"
# Tables that only grow.
GROWING: Final = (
    *("tasks", "attempts", "events", "dag_events", "usage_ledger", "spending"),
    *("artifacts", "notices", "dead_letters", "stale_results"),
)
# Runs that their task repeats from its start.
BROKEN_OFF: Final = ("bundle_crash", "busy", "crash", "interrupted", "released", "worker_lost")
# Commands cannot write the handlers' record, and HTTP agents are killed alone.
NOT_OF_POOL: Final = (COMMAND, REMOTE)
Findings = dict[str, list[str]]


def invariants(stack: ChaosStack, record: Record, *, drained: bool) -> Findings:
    """Check every invariant on one snapshot; with the handlers' record once it is complete."""
    violated = violations(
        stack.deployment.owner,
        drained=drained,
        acked=[ack.task_id for ack in record.acks],
        sweep_time=SWEEP_TIME,
        recorded_actions=HandlerRecord.read(stack.handler_record).recorded_actions()
        if drained
        else None,
    )
    return {"invariants": describe_violations(violated).splitlines()} if violated else {}


def promises(stack: ChaosStack, record: Record) -> Findings:
    """Compare the responses that producers got with the rows."""
    rows = {
        row["id"]: row
        for row in stack.deployment.rows("SELECT id, user_id, state, idempotency_key FROM tasks")
    }
    lost = [ack for ack in record.acks if ack.task_id not in rows]
    mismatched = [
        ack
        for ack in record.acks
        if ack.task_id in rows
        and (rows[ack.task_id]["user_id"], rows[ack.task_id]["idempotency_key"])
        != (ack.user_id, ack.key)
    ]
    revived = {
        row["task_id"] for row in stack.deployment.rows("SELECT DISTINCT task_id FROM dead_letters")
    }
    # A cancelled task without a row is in the list of lost tasks already.
    not_cancelled = [
        show_task(task_id)
        for task_id in record.cancelled
        if task_id in rows and rows[task_id]["state"] != "cancelled" and task_id not in revived
    ]
    duplicates = [key for key, tasks in by_key(record.acks).items() if len(tasks) > 1]
    return as_findings(
        {
            "acknowledged tasks without a row": lost,
            "acknowledged under another key or user": mismatched,
            "two tasks for one key": duplicates,
            "cancelled tasks in another state": not_cancelled,
            "responses that should never occur": record.faults,
        }
    )


def handler_runs(stack: ChaosStack, truth: HandlerRecord, blamed_pids: set[int] | None) -> Findings:
    """Compare the handlers' record with the rows.

    `blamed_pids` are the processes that were killed alone: such a death may count against the
    run. None: they were not recorded, so the check for false poison is left out.
    """
    accepted = stack.deployment.rows(
        "SELECT a.task_id, a.epoch, t.output FROM attempts a JOIN tasks t ON t.id = a.task_id"
        " WHERE a.outcome = 'completed'"
    )
    outputs = {f"{show_task(row['task_id'])}:{row['epoch']}": row["output"] for row in accepted}
    mismatched = [key for key, output in outputs.items() if (output or {}).get("key") != key]
    return as_findings(
        {
            "accepted with an output that is not the run's own": mismatched,
            "poison that ran too often": _too_often(stack, truth),
            "in a bundle again after one crashed": [
                show_task(row["task_id"])
                for row in stack.deployment.rows(
                    "SELECT task_id FROM attempts WHERE outcome = 'bundle_crash'"
                    " GROUP BY task_id HAVING count(*) > 1"
                )
            ],
            "tasks marked as poison without cause": (
                [] if blamed_pids is None else _false_poison(stack, truth, blamed_pids)
            ),
        }
    )


def artifacts(stack: ChaosStack) -> Findings:
    """Find artifacts that are seen although their run was repeated, or that are of another run."""
    rows = stack.deployment.rows(
        "SELECT f.task_id, f.epoch, f.name, f.content, a.outcome FROM artifacts f"
        " LEFT JOIN attempts a ON a.task_id = f.task_id AND a.epoch = f.epoch"
    )
    keys = {id(row): f"{show_task(row['task_id'])}:{row['epoch']}" for row in rows}
    return as_findings(
        {
            "artifacts of a run that was repeated": [
                f"{keys[id(row)]} {row['name']}: {row['outcome']}"
                for row in rows
                if row["outcome"] is None or row["outcome"] in BROKEN_OFF
            ],
            "artifacts with the content of another run": [
                f"{keys[id(row)]} {row['name']}"
                for row in rows
                if keys[id(row)] not in bytes(row["content"]).decode()
            ],
        }
    )


def _too_often(stack: ChaosStack, truth: HandlerRecord) -> list[str]:
    """Return poison tasks that ran more often than they had attempts.

    A bundle that crashes spends no attempt, so one more run is allowed.
    """
    runs = Counter(parse_task(key.rpartition(":")[0]) for key in truth.starts)
    rows = stack.deployment.rows(f"SELECT id, max_attempts FROM tasks WHERE type = '{POISON}'")
    return [show_task(row["id"]) for row in rows if runs[row["id"]] > row["max_attempts"] + 1]


def _false_poison(stack: ChaosStack, truth: HandlerRecord, blamed_pids: set[int]) -> list[str]:
    """Return tasks that were marked as poison although nothing killed only their process."""
    rows = stack.deployment.rows(
        "SELECT a.task_id, a.epoch FROM attempts a JOIN tasks t ON t.id = a.task_id"
        f" WHERE a.outcome = 'crash' AND t.type NOT IN {(POISON, *NOT_OF_POOL)}"
        " AND EXISTS (SELECT 1 FROM dead_letters d WHERE d.task_id = t.id AND d.poison_pill)"
    )
    false_poison = set()
    for row in rows:
        key = f"{show_task(row['task_id'])}:{row['epoch']}"
        if not any(_is_one_of(line, blamed_pids) for line in truth.starts.get(key, ())):
            false_poison.add(key)
    return sorted(false_poison)


def falsely_blamed(stack: ChaosStack, truth: HandlerRecord, killed_pids: set[int]) -> Findings:
    """Find runs recorded as a crash although nothing killed only their process."""
    rows = stack.deployment.rows(
        "SELECT a.task_id, a.epoch FROM attempts a JOIN tasks t ON t.id = a.task_id"
        f" WHERE a.outcome = 'crash' AND t.type NOT IN {(POISON, 'stubborn', *NOT_OF_POOL)}"
    )
    keys = [f"{show_task(row['task_id'])}:{row['epoch']}" for row in rows]
    # A run that died before its handler started may have been killed alone.
    started = [key for key in keys if truth.starts.get(key)]
    return as_findings(
        {
            "runs recorded as crashes without cause": [
                key for key in started if not _is_one_of(truth.starts[key][0], killed_pids)
            ]
        }
    )


def _is_one_of(start: Mapping[str, Any], pids: set[int]) -> bool:
    """Whether a run started in one of these processes, or under one of these guards."""
    return start["pid"] in pids or start["guard"] in pids


def replay(stack: ChaosStack) -> Findings:
    """Publish old messages again and wait until workers have taken all messages in Redis.

    The messages must have no effect; `moved` checks that after the workers have ended.
    """
    rows = stack.deployment.rows(
        "SELECT a.task_id, a.epoch, a.token, a.user_id, a.pool, t.type FROM attempts a"
        " JOIN tasks t ON t.id = a.task_id WHERE t.type <> :remote"
        " ORDER BY a.claimed_at DESC LIMIT :limit",
        remote=REMOTE,
        limit=REPLAYED,
    )
    _requeue_unacked(stack)
    sent = stack.publish(rows)
    if sent < len(rows):
        return {"replay": [f"{len(rows) - sent} messages could not be sent"]}
    try:
        wait_until(lambda: not _queued(stack), timeout=60, what="the queues to be empty", pause=0.2)
    except AssertionError as error:
        return {"replay": [str(error), str(_queued(stack))]}
    return {}


def moved(stack: ChaosStack, before: Mapping[str, object]) -> Findings:
    """Find changes since the footprint `before`; old messages must cause none."""
    after = footprint(stack)
    changed = [
        f"{what}: {before[what]} -> {count}"
        for what, count in after.items()
        if count != before[what]
    ]
    return as_findings({"replay changed something": changed})


def _requeue_unacked(stack: ChaosStack) -> None:
    """Requeue messages that killed workers took and did not acknowledge."""
    with fail_fast_client(stack.redis.url) as client:
        taken: dict[bytes, bytes] = client.hgetall(UNACKED)
        for tag, delivery in taken.items():
            message, _, queue = json.loads(delivery)
            client.rpush(f"{PREFIX}{queue}", json.dumps(message))
            client.hdel(UNACKED, tag.decode())


def _queued(stack: ChaosStack) -> dict[str, int]:
    """Count the messages in the queues and the unacknowledged ones.

    The maintenance queue gets new messages with every tick, so it is left out.
    """
    with fail_fast_client(stack.redis.url) as client:
        lengths = {
            pool: int(client.llen(f"{PREFIX}agents.{pool}")) for pool in ("default", "night")
        }
        lengths["unacked"] = sum(EXECUTE.encode() in message for message in client.hvals(UNACKED))
    return {pool: length for pool, length in lengths.items() if length}


def footprint(stack: ChaosStack) -> dict[str, object]:
    """Return counts that any further move, run, ledger row, cost, artifact or stale result changes.

    The handlers' record is included: a handler that ran again may have changed no row.
    """
    counts = ", ".join(f"(SELECT count(*) FROM {table}) AS {table}" for table in GROWING)
    rows = stack.deployment.one(
        "SELECT (SELECT sum(revision) FROM tasks) AS revisions,"
        f" (SELECT sum(usd) FROM spending) AS usd, {counts}"
    )
    truth = HandlerRecord.read(stack.handler_record)
    return {
        **rows,
        "handlers begun": sum(map(len, truth.starts.values())),
        "handlers ended": sum(map(len, truth.ends.values())),
    }


def as_findings(objects: Mapping[str, Iterable[object]]) -> Findings:
    """Return the first few objects of each check as texts; checks without objects are left out."""
    texts = {check: [str(thing) for thing in things] for check, things in objects.items()}
    return {
        check: [
            *lines[:SHOWN],
            *([f"… and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []),
        ]
        for check, lines in texts.items()
        if lines
    }
