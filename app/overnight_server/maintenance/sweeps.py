"""All sweeps by name, as beat runs them and `overnight sweep` runs them by hand."""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from overnight_server.dispatch.fill import fill
from overnight_server.dispatch.publish import Publisher
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps
from overnight_server.intake.inbox import process_inbox
from overnight_server.maintenance.audit_lanes import audit
from overnight_server.maintenance.bulk import run_bulks
from overnight_server.maintenance.deadlines import dead_letter_passed, raise_deadline_priority
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import end_overdue, reap, retire_agents
from overnight_server.maintenance.reset import reset_cycles
from overnight_server.maintenance.triggers import fire_due
from overnight_server.settings import Settings
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db
from overnight_server.telemetry import LogEvent, emit

# A worker is retired after this many times the silence after which the gate ignores its slots.
RETIRE_FACTOR = 4


@dataclass(frozen=True)
class Sweep:
    """One sweep: a pass over the database that returns how many rows it changed."""

    run: Callable[[Db, Settings], int]
    interval: Callable[[Settings], float]
    purpose: str


def run_sweep(db: Db, settings: Settings, name: str, *, force: bool = False) -> int | None:
    """Run one sweep and return how many rows it changed; None if it has just run.

    With two beat processes every tick comes twice; the second one within half an interval does
    nothing. `force` runs the sweep anyway, which is always safe: sweeps are idempotent.
    """
    sweep = SWEEPS[name]
    gap = 0.0 if force else sweep.interval(settings) / 2
    if not db.run_batch(StatementCall("begin_sweep", {"name": name, "gap": gap})):
        return None
    fault("sweep.after_lock")
    began = time.monotonic()
    changed = sweep.run(db, settings)
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


SWEEPS: dict[str, Sweep] = {
    "reap": Sweep(_reap, lambda s: s.lease_check_interval, "take back the tasks of lost workers"),
    "timeouts": Sweep(
        _end_overdue,
        lambda s: s.timeout_check_interval,
        "end runs that exceed their timeout or ignore a cancel",
    ),
    "promote": Sweep(
        lambda db, _: promote(db), lambda s: s.promote_interval, "make due retries ready"
    ),
    "triggers": Sweep(
        lambda db, s: fire_due(db, Caps.of(s)),
        lambda s: s.trigger_interval,
        "submit graphs whose trigger is due",
    ),
    "inbox": Sweep(process_inbox, lambda s: s.inbox_interval, "submit tasks from the inbox"),
    "bulk": Sweep(
        lambda db, s: run_bulks(db, Caps.of(s)),
        lambda s: s.bulk_interval,
        "continue bulk operations",
    ),
    "reset": Sweep(
        lambda db, _: reset_cycles(db),
        lambda s: s.cycle_check_interval,
        "start billing months, open and close night windows",
    ),
    "deadlines": Sweep(
        lambda db, _: dead_letter_passed(db),
        lambda s: s.deadline_check_interval,
        "dead-letter tasks that did not start by their deadline",
    ),
    "urgency": Sweep(
        lambda db, _: raise_deadline_priority(db),
        lambda s: s.urgency_interval,
        "raise the priority of tasks near their deadline",
    ),
    "dispatch": Sweep(
        _dispatch, lambda s: s.dispatch_tick_interval, "fill free slots, in case no dispatcher runs"
    ),
    "audit": Sweep(
        lambda db, _: audit(db),
        lambda s: s.audit_interval,
        "compare the lanes' counters with the task rows",
    ),
}
