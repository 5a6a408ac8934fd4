"""The sweeps by name: what beat may ask for, and what an operator can run by hand."""

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
from overnight_server.maintenance.bulk import work_off
from overnight_server.maintenance.deadlines import dead_letter_passed, raise_deadline_priority
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import end_overdue, reap, retire_agents
from overnight_server.maintenance.reset import reset_cycles
from overnight_server.maintenance.triggers import fire_due
from overnight_server.settings import Settings
from overnight_server.store.batched_statements import Call
from overnight_server.store.db import Db
from overnight_server.telemetry import Event, emit

# A worker is written off only long after the gate stopped counting its slots.
SILENCES = 4


@dataclass(frozen=True)
class Sweep:
    """One sweep: a pass over the database that returns how many rows it touched."""

    run: Callable[[Db, Settings], int]
    interval: Callable[[Settings], float]
    purpose: str


def run_sweep(db: Db, settings: Settings, name: str, *, force: bool = False) -> int | None:
    """Run one sweep; None if another beat's tick has just had this turn.

    Every sweep is idempotent, so `force` is always safe.
    """
    sweep = SWEEPS[name]
    gap = 0.0 if force else sweep.interval(settings) / 2
    if not db.run_batch(Call("begin_sweep", {"name": name, "gap": gap})):
        return None
    fault("sweep.after_turn")
    began = time.monotonic()
    touched = sweep.run(db, settings)
    fault("sweep.before_end")
    db.run_batch(Call("finish_sweep", {"name": name, "touched": touched}))
    if touched:
        # A sweep that changed rows may have made a task ready or a slot free.
        db.wake()
    emit(Event.SWEEP_RAN, sweep=name, changed=touched, seconds=round(time.monotonic() - began, 3))
    return touched


def _reap(db: Db, settings: Settings) -> int:
    liveness = timedelta(seconds=settings.worker_liveness)
    retire_agents(db, silence=liveness * SILENCES)
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
    "reap": Sweep(
        _reap, lambda s: s.lease_check_interval, "take tasks back from holders that fell silent"
    ),
    "timeouts": Sweep(
        _end_overdue, lambda s: s.timeout_check_interval, "end runs that would not stop"
    ),
    "promote": Sweep(
        lambda db, _: promote(db), lambda s: s.promote_interval, "make due retries ready"
    ),
    "triggers": Sweep(
        lambda db, s: fire_due(db, Caps.of(s)),
        lambda s: s.trigger_interval,
        "let in graphs that the end of another sets off",
    ),
    "inbox": Sweep(
        process_inbox, lambda s: s.inbox_interval, "let in what programs left in their transactions"
    ),
    "bulk": Sweep(
        lambda db, s: work_off(db, Caps.of(s)),
        lambda s: s.bulk_interval,
        "go on with bulk operations",
    ),
    "reset": Sweep(
        lambda db, _: reset_cycles(db),
        lambda s: s.cycle_check_interval,
        "begin billing months, open and close night windows",
    ),
    "deadlines": Sweep(
        lambda db, _: dead_letter_passed(db),
        lambda s: s.deadline_check_interval,
        "end tasks that did not start by their deadline",
    ),
    "urgency": Sweep(
        lambda db, _: raise_deadline_priority(db),
        lambda s: s.urgency_interval,
        "move tasks forward whose deadline nears",
    ),
    "dispatch": Sweep(
        _dispatch, lambda s: s.dispatch_tick_interval, "fill free slots if no dispatcher does"
    ),
    "audit": Sweep(
        lambda db, _: audit(db), lambda s: s.audit_interval, "compare lanes with the rows"
    ),
}
