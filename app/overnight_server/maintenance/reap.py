"""Take tasks back: claims whose lease expired, runs of dead processes, and overdue runs."""

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.lifecycle import LifecycleEvent, State
from overnight_server.domain.notifications import NotificationKind
from overnight_server.domain.results import (
    Died,
    Expired,
    Interrupted,
    Lost,
    Result,
    StoppedByCancel,
    TimedOut,
)
from overnight_server.domain.verdicts import TaskHistory, judge
from overnight_server.fault_points import fault
from overnight_server.gate.dispatch_log import NOT_STARTED, log_dispatch_failed
from overnight_server.outcome.settle import Ending, record
from overnight_server.store import lanes
from overnight_server.store.after_commit import log_after_commit
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db
from overnight_server.store.notifications import record_notification
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.run_rows import failures_of, policy_of
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, emit

BATCH = 500
ENDED_BY_FORCE = "ended_by_force"
# How long the rows of offline workers and pull agents are kept; each restart of a worker adds one.
OFFLINE_WORKERS_KEPT = timedelta(days=1)
OFFLINE_PULL_AGENTS_KEPT = timedelta(days=30)
DELETED_AGENTS_PER_PASS = 1_000


def reap(db: Db) -> int:
    """Settle every claim whose lease has expired, because its worker is lost; return their number.

    A task that was not started returns to the queue and spends nothing. A run is settled as
    cancelled if a stop was requested, as timed out if its last heartbeat came after its limit,
    otherwise as lost. It is a crash of the run itself only if its pull agent still sends
    heartbeats. No run is billed for longer than until its last heartbeat.
    """
    return len(_settle_all(db, "expired_claims", {"limit": BATCH}, only_expired=True))


def begin_grace(db: Db, *, gap: timedelta, lease: timedelta) -> bool:
    """Give all runs one more lease if the reaper made no pass for `gap`; return whether it did so.

    Nobody could renew a lease while Postgres was unreachable. The reaper's own last pass tells how
    long that may have been, whether Postgres was restarted, failed over or cut off.
    """
    params = {"gap": gap.total_seconds(), "lease": lease.total_seconds()}
    resumed = db.run_batch(StatementCall("begin_grace", params))
    for row in resumed:
        emit(LogEvent.REAPER_RESUMED, seconds=round(row.seconds, 1))
    return bool(resumed)


def settle_runs_of_dead_process(
    db: Db,
    claims: Sequence[Claim],
    *,
    handling: bool,
    ended_by_worker: bool = False,
    out_of_memory: bool = False,
    dead_for: timedelta = timedelta(),
) -> int:
    """Settle the runs of a process of a live worker that died `dead_for` ago.

    Return the number of runs that were still held.
    With `handling`, the handler was running when the process died: that is a crash of the run.
    With `ended_by_worker`, the worker ended the process on purpose, and the run is handed back.
    With `out_of_memory`, the worker ended it because the run used too much memory.
    """
    params = {
        "tasks": [claim.task_id for claim in claims],
        "tokens": [claim.token for claim in claims],
        "handling": handling,
        "ended_by_worker": ended_by_worker,
        "out_of_memory": out_of_memory,
        "dead_seconds": dead_for.total_seconds(),
        "limit": BATCH,
    }
    return len(_settle_all(db, "runs_of_dead_workers", params, only_expired=False))


def end_overdue(db: Db, *, grace: timedelta, kill: Callable[[Claim], None]) -> int:
    """End and kill runs that send heartbeats but exceed their time or ignore a cancel.

    Settles at most a batch of them, lanes locked first, and then calls `kill` for each. A command
    has the grace of its task if that is longer. Return how many were ended.
    """
    params = {"grace": grace.total_seconds(), "own_grace": True, "limit": BATCH}
    ended = _settle_all(db, "overdue_runs", params, only_expired=False)
    for ending in ended:
        fault("timeouts.before_kill")
        kill(ending.claim)
    return len(ended)


def retire_agents(db: Db, *, silence: timedelta) -> int:
    """Mark workers offline that sent no heartbeat for `silence`; pools check all lanes again.

    Delete workers and pull agents that have been offline for long. Return how many went offline.
    """
    _delete_offline_agents(db)
    params = {"silence": silence.total_seconds()}
    if not db.run_batch(StatementCall("silent_agents", params)):
        return 0

    def work(tx: Connection) -> int:
        # Lanes are locked before agents, as in a settle that pays from an agent's budget.
        tx.execute(statement("unskip_all_lanes"))
        retired = tx.execute(statement("retire_agents"), params).all()
        for agent in retired:
            log_after_commit(
                tx, LogEvent.WORKER_LEFT, worker=agent.id, pool=agent.pool, reason="silent"
            )
            # The owner of a pull agent is told about it, the operators about workers.
            record_notification(
                tx,
                NotificationKind.WORKER_LOST,
                user_id=agent.owner_id,
                subject=f"{agent.id}:{agent.last_heartbeat_at.isoformat()}",
                detail={
                    "title": agent.id,
                    "pool": agent.pool,
                    "last_heartbeat_at": agent.last_heartbeat_at,
                },
            )
        return len(retired)

    count = db.atomically(work)
    if count:
        lanes.unskip_lanes(db)
    return count


def _delete_offline_agents(db: Db) -> None:
    kept = {
        "worker_seconds": OFFLINE_WORKERS_KEPT.total_seconds(),
        "pull_agent_seconds": OFFLINE_PULL_AGENTS_KEPT.total_seconds(),
        "limit": DELETED_AGENTS_PER_PASS,
    }
    db.atomically(lambda tx: tx.execute(statement("delete_offline_agents"), kept))


def _settle_all(
    db: Db, finder: str, params: Mapping[str, object], *, only_expired: bool
) -> list[Ending]:
    ended: list[Ending] = []
    limit = PassLimit()
    while True:
        rows = db.atomically(lambda tx: tx.execute(statement(finder), params).mappings().all())
        endings = [_ending(dict(row), only_expired=only_expired) for row in rows]
        if endings:
            fault("reap.after_search")
        won = _record(db, endings)
        for ending in won:
            fault("reap.after_commit")
            _report(ending)
        ended += won
        # If none of a batch was still held, others have settled them; the next pass continues.
        if len(rows) < BATCH or not won or limit.is_over:
            return ended


def _record(db: Db, endings: Sequence[Ending]) -> list[Ending]:
    return db.atomically(lambda tx: record(tx, endings, keep_stale=False).won)


def _ending(row: Mapping[str, Any], *, only_expired: bool) -> Ending:
    agent = row["claimed_by"]
    result = _result_of(row)
    standing = TaskHistory(
        row["attempts"],
        row["max_attempts"],
        policy_of(row["retry"]),
        agent,
        failures_of(row["failures"]),
    )
    return Ending(
        Claim(TaskId(row["id"]), row["epoch"], row["token"]),
        UserId(row["user_id"]),
        agent,
        result,
        judge(standing, result, random.random()),  # noqa: S311 - jitter, not a secret
        only_expired=only_expired,
        bundle=row["bundle"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        failures=standing.failures,
    )


def _result_of(row: Mapping[str, Any]) -> Result:
    if row["state"] == State.CLAIMED:
        return Expired()
    ran_seconds = row["alive_seconds"]
    if row["cancel_requested"]:
        return StoppedByCancel(ran_seconds=ran_seconds)
    if row["out_of_time"]:
        return TimedOut(by_plan=row["plan_limited"], ran_seconds=ran_seconds)
    if row["ended_by_worker"]:
        return Interrupted(ENDED_BY_FORCE, ran_seconds=ran_seconds)
    in_bundle = row["bundle"] is not None
    if row["died"]:
        return Died(
            in_bundle=in_bundle, out_of_memory=row["out_of_memory"], ran_seconds=ran_seconds
        )
    return Lost(in_bundle=in_bundle, ran_seconds=ran_seconds)


def _report(ending: Ending) -> None:
    if isinstance(ending.result, Expired | Lost):
        log_dispatch_failed(
            ending.claim.task_id,
            NOT_STARTED if isinstance(ending.result, Expired) else str(ending.verdict.message),
            attempt=ending.attempts + 1,
            max_attempts=ending.max_attempts,
            is_final=ending.verdict.event is LifecycleEvent.DEAD_LETTER,
        )
    if isinstance(ending.result, Expired):
        return  # also logged as CLAIM_RELEASED
    emit(
        LogEvent.TASK_REAPED,
        queue_id=show_task(ending.claim.task_id),
        epoch=ending.claim.epoch,
        state=ending.verdict.event.value,
        reason=ending.verdict.outcome,
        holder=ending.agent,
    )
