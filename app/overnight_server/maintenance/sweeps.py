"""All sweeps by name, as beat runs them and `overnight sweep` runs them by hand."""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from overnight_server.artifact_store.store import open_store
from overnight_server.dispatch.fill import fill
from overnight_server.dispatch.publish import Publisher
from overnight_server.domain.retention import TASKS, days_of_rules, parse_days
from overnight_server.fault_points import fault
from overnight_server.gate.claim import ClaimSettings
from overnight_server.intake.caps import Caps
from overnight_server.intake.inbox import process_inbox
from overnight_server.maintenance.artifact_retention import delete_old_artifacts
from overnight_server.maintenance.audit import audit, audit_all
from overnight_server.maintenance.bulk import run_bulks
from overnight_server.maintenance.deadlines import dead_letter_passed, raise_deadline_priority
from overnight_server.maintenance.file_drop import take_files
from overnight_server.maintenance.log_retention import delete_old_logs
from overnight_server.maintenance.no_handler import dead_letter_unhandled
from overnight_server.maintenance.orphan_blobs import delete_orphan_blobs
from overnight_server.maintenance.partitions import add_partitions
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.queue_metrics import count_new_events
from overnight_server.maintenance.reap import begin_grace, end_overdue, reap, retire_agents
from overnight_server.maintenance.reset import reset_cycles
from overnight_server.maintenance.retention import delete_old_rows
from overnight_server.maintenance.rules import apply_rules
from overnight_server.maintenance.schedules import fire_schedules
from overnight_server.maintenance.stale_artifacts import delete_stale_artifacts
from overnight_server.maintenance.starvation_alarm import report_starving_users
from overnight_server.maintenance.triggers import fire_due
from overnight_server.settings import Settings
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db
from overnight_server.telemetry import LogEvent, emit

# A worker is retired after this many times the silence after which the gate ignores its slots.
RETIRE_FACTOR = 4
# After a gap of this many intervals, Postgres may have been unreachable for everybody.
MISSED_PASSES = 3


@dataclass(frozen=True)
class Sweep:
    """One sweep: a pass over the database that returns how many rows it changed.

    `run_all` is set if one pass does only a part of the work: a sweep by hand does all of it.

    Urgent sweeps must run within seconds: a lost run starts again, a due retry is ready. They never
    wait for the others, whose work users can make long.
    """

    run: Callable[[Db, Settings], int]
    interval: Callable[[Settings], float]
    purpose: str
    run_all: Callable[[Db, Settings], int] | None = None
    is_urgent: bool = False


def run_sweep(db: Db, settings: Settings, name: str, *, force: bool = False) -> int | None:
    """Run one sweep and return how many rows it changed; None if it has just run.

    With two beat processes every tick comes twice; the second one within half an interval does
    nothing. `force` runs the sweep anyway, and all of it, which is always safe: sweeps are
    idempotent.
    """
    sweep = SWEEPS[name]
    gap = 0.0 if force else sweep.interval(settings) / 2
    if not db.run_batch(StatementCall("begin_sweep", {"name": name, "gap": gap})):
        return None
    fault("sweep.after_lock")
    began = time.monotonic()
    run = sweep.run_all if force and sweep.run_all else sweep.run
    changed = run(db, settings)
    fault("sweep.before_end")
    db.run_batch(StatementCall("finish_sweep", {"name": name, "touched": changed}))
    if changed:
        # A sweep that changed rows may have made a task ready or a slot free.
        db.wake()
    emit(
        LogEvent.SWEEP_RAN, sweep=name, changed=changed, seconds=round(time.monotonic() - began, 3)
    )
    return changed


def _reap(db: Db, settings: Settings) -> int:
    lease = timedelta(seconds=settings.lease_seconds)
    # A shorter outage ends no lease: its worker renewed it at most one heartbeat before the outage,
    # and renews it half a heartbeat after it.
    gap = max(
        lease - 1.5 * timedelta(seconds=settings.heartbeat_interval),
        MISSED_PASSES * timedelta(seconds=settings.lease_check_interval),
    )
    begin_grace(db, gap=gap, lease=lease)
    liveness = timedelta(seconds=settings.worker_liveness)
    retire_agents(db, silence=liveness * RETIRE_FACTOR)
    return reap(db)


def _end_overdue(db: Db, settings: Settings) -> int:
    publisher = Publisher(settings)
    try:
        grace = timedelta(seconds=settings.cancel_grace)
        return end_overdue(db, grace=grace, kill=publisher.terminate)
    finally:
        publisher.close()


def _dispatch(db: Db, settings: Settings) -> int:
    publisher = Publisher(settings)
    try:
        holder = f"{socket.gethostname()}:{os.getpid()}:beat"
        return fill(db, publisher, settings, holder=holder).sent
    finally:
        publisher.close()


def _dead_letter_unhandled(db: Db, settings: Settings, *, reads_all: bool = False) -> int:
    if settings.no_handler_timeout is None:
        return 0
    return dead_letter_unhandled(
        db,
        timeout=timedelta(seconds=settings.no_handler_timeout),
        liveness=timedelta(seconds=settings.worker_liveness),
        reads_all=reads_all,
    )


def _delete_orphan_blobs(db: Db, settings: Settings, *, reads_all: bool = False) -> int:
    store = open_store(settings.artifact_store)
    return 0 if store is None else delete_orphan_blobs(db, store, reads_all=reads_all)


def _prune(db: Db, settings: Settings) -> int:
    days = days_of_rules(parse_days(settings.retention_days))
    add_partitions(db, "events", retention=timedelta(days=days[TASKS] or 1))
    add_partitions(db, "log_chunks", retention=timedelta(days=settings.log_retention_days))
    return delete_old_rows(db, days)


def _count_new_events(db: Db, *, counts_all: bool = False) -> int:
    # 0: no figure lets a task start, so nobody is woken.
    count_new_events(db, counts_all=counts_all)
    return 0


def _report_starving(db: Db, settings: Settings) -> int:
    return report_starving_users(db, ClaimSettings.from_settings(settings))


SWEEPS: dict[str, Sweep] = {
    "reap": Sweep(
        _reap,
        lambda settings: settings.lease_check_interval,
        "take back the tasks of lost workers",
        is_urgent=True,
    ),
    "timeouts": Sweep(
        _end_overdue,
        lambda settings: settings.timeout_check_interval,
        "end runs that exceed their timeout or ignore a cancel",
        is_urgent=True,
    ),
    "promote": Sweep(
        lambda db, _: promote(db),
        lambda settings: settings.promote_interval,
        "make tasks ready whose retry or start is due",
        is_urgent=True,
    ),
    "triggers": Sweep(
        lambda db, settings: fire_due(db, Caps.of(settings)),
        lambda settings: settings.trigger_interval,
        "submit graphs whose trigger is due",
    ),
    "schedules": Sweep(
        fire_schedules,
        lambda settings: settings.schedule_interval,
        "submit the tasks and graphs of schedules that are due",
    ),
    "inbox": Sweep(
        process_inbox, lambda settings: settings.inbox_interval, "submit tasks from the inbox"
    ),
    "drop": Sweep(
        take_files,
        lambda settings: settings.drop_interval,
        "submit tasks from files in the watched folder",
    ),
    "rules": Sweep(
        apply_rules,
        lambda settings: settings.rules_interval,
        "file tasks for figures that improvement rules find bad",
    ),
    "bulk": Sweep(
        lambda db, settings: run_bulks(db, Caps.of(settings)),
        lambda settings: settings.bulk_interval,
        "continue bulk operations",
    ),
    "reset": Sweep(
        lambda db, _: reset_cycles(db),
        lambda settings: settings.cycle_check_interval,
        "start billing months, open and close night windows",
        is_urgent=True,
    ),
    "deadlines": Sweep(
        lambda db, _: dead_letter_passed(db),
        lambda settings: settings.deadline_check_interval,
        "dead-letter tasks that did not start by their deadline",
        is_urgent=True,
    ),
    "unhandled": Sweep(
        _dead_letter_unhandled,
        lambda settings: settings.no_handler_check_interval,
        "dead-letter tasks whose type no worker has handled for too long",
        run_all=partial(_dead_letter_unhandled, reads_all=True),
    ),
    "urgency": Sweep(
        lambda db, _: raise_deadline_priority(db),
        lambda settings: settings.urgency_interval,
        "raise the priority of tasks near their deadline",
    ),
    "dispatch": Sweep(
        _dispatch,
        lambda settings: settings.dispatch_tick_interval,
        "fill free slots, in case no dispatcher runs",
        is_urgent=True,
    ),
    "metrics": Sweep(
        lambda db, _: _count_new_events(db),
        lambda settings: settings.metrics_interval,
        "count new events for /metrics and the statistics of each hour",
        run_all=lambda db, _: _count_new_events(db, counts_all=True),
    ),
    "prune": Sweep(
        _prune,
        lambda settings: settings.prune_interval,
        "delete what is older than it is kept, and add the partitions that will be needed",
    ),
    "logs": Sweep(
        lambda db, settings: delete_old_logs(
            db,
            retention=timedelta(days=settings.log_retention_days),
            failures_retention=timedelta(days=settings.failed_log_retention_days),
        ),
        lambda settings: settings.log_retention_interval,
        "delete logs of runs that are older than their retention",
    ),
    "artifacts": Sweep(
        lambda db, settings: (
            delete_stale_artifacts(db)
            + delete_old_artifacts(db, retention=timedelta(days=settings.artifact_retention_days))
        ),
        lambda settings: settings.artifact_check_interval,
        "delete what lost runs had stored, and artifacts that are older than their retention",
    ),
    "blobs": Sweep(
        _delete_orphan_blobs,
        lambda settings: settings.blob_check_interval,
        "delete contents in the artifact store that no artifact needs",
        run_all=partial(_delete_orphan_blobs, reads_all=True),
    ),
    "audit": Sweep(
        lambda db, settings: (
            audit(db, retention=timedelta(days=settings.audit_findings_days))
            + _report_starving(db, settings)
        ),
        lambda settings: settings.audit_interval,
        "check that rows agree with each other, and report users who are not served",
        run_all=lambda db, settings: audit_all(db) + _report_starving(db, settings),
    ),
}
