"""Lets a slot that has finished its tasks claim the next ones itself.

A message through the dispatcher, Redis and Celery takes longer than a short task runs. The slot
uses the same gate as the dispatcher, so fairness between users is unchanged. Recording the last
results, claiming and starting the next tasks are one transaction: no one else sees the slot free in
between, and a process that dies leaves no task claimed that nobody runs.

When no task is ready, the slot becomes an idle listener: it subscribes to wake-ups and claims the
first task that arrives. A message without claims makes a slot an idle listener directly. While it
listens, its slot counts as free, and it competes with the dispatcher under the pool's lock. It
stops listening as soon as a Celery message is sent to the pool, because Celery may need its process
for that message. When its time is up, the dispatcher requests another idle listener.
"""

import time
from datetime import timedelta
from typing import Self
from uuid import UUID, uuid4

from billiard.compat import mem_rss
from sqlalchemy import Connection

from overnight_server.domain.claims import Run
from overnight_server.fault_points import fault
from overnight_server.gate.claim import (
    ClaimSettings,
    StartedRuns,
    claim_for_idle_slot,
    claim_next_for_slot,
    prepare_idle_claim,
)
from overnight_server.gate.dispatch_log import log_taken
from overnight_server.store.batched_statements import PackedBatch
from overnight_server.store.db import DATABASE_ERRORS, ReservedConnection
from overnight_server.telemetry import LogEvent, emit
from overnight_server.wakeups.idle_slot_listener import SlotSignal, SlotSubscription
from overnight_worker.identity import WORKER_ID
from overnight_worker.record_results import UNANSWERED_SECONDS, hand_back_by, hand_back_token_by
from overnight_worker.resources import WorkerResources
from overnight_worker.shutdown import SHUTDOWN_FLAG

# An idle listener checks this often whether the worker shuts down.
SHUTDOWN_CHECK_SECONDS = 0.5
# An idle listener checks a connection that is older than this: the server may no longer answer.
CONNECTION_TRUST_SECONDS = 2.0
# How long a slot that mostly listens continues after its message.
LISTEN_SECONDS = 60.0


class SlotLoop:
    """What the slot of one message runs after that message, for a limited time."""

    def __init__(self, resources: WorkerResources) -> None:
        self._resources = resources
        self._claim_settings = ClaimSettings.from_settings(resources.settings)
        self._lease = timedelta(seconds=resources.settings.lease_seconds)
        # Afterwards Celery gets its process back, to check it and perhaps to replace it: soon
        # after much work, later if the slot mostly listened.
        self._continue_until = time.monotonic() + resources.settings.refill_seconds
        self._listen_until = max(self._continue_until, time.monotonic() + LISTEN_SECONDS)
        self._memory_limit_kb = resources.settings.max_memory_per_child_mb * 1024
        self._bundle = uuid4()
        self._next = StartedRuns()
        self._committed = False
        self.start_requested_at = 0.0

    def continue_after(self, run: Run) -> Self | None:
        """Return self if the slot may claim more tasks after `run`, else None."""
        if not self._may_continue:
            return None
        # Celery shows the process under the id of its message, so later bundles keep that id.
        self._bundle = run.bundle or self._bundle
        return self

    @property
    def _may_continue(self) -> bool:
        return (
            time.monotonic() < self._continue_until
            and not SHUTDOWN_FLAG.is_set
            # Celery replaces a process that has used too much memory, once it gets it back; it
            # looks at the same number, the largest amount so far.
            and mem_rss() <= self._memory_limit_kb
        )

    def claim(self, tx: Connection) -> None:
        """Claim and start the next runs in the transaction that records the last ones."""
        settings = self._resources.settings
        # Taken before the start is requested: the leases count from some moment after this.
        self.start_requested_at = time.monotonic()
        self._next = StartedRuns()
        self._next = claim_next_for_slot(
            tx,
            settings.pool,
            agent=WORKER_ID,
            bundle=self._bundle,
            claim_settings=self._claim_settings,
            lease=self._lease,
        )
        fault("refill.before_commit")

    def committed(self) -> None:
        """Note that the transaction of `claim` was committed."""
        self._committed = True

    def take_next_runs(self) -> list[Run]:
        """Return the runs that `claim` started; an empty list if the loop ends here."""
        begun, self._next = self._next, StartedRuns()
        committed, self._committed = self._committed, False
        if not committed:
            # Postgres did not confirm the commit, but may have committed.
            claims = [run.claim for run in begun.runs]
            hand_back_by(self._resources.db, claims, deadline=time.monotonic() + UNANSWERED_SECONDS)
            return []
        if begun.runs:
            fault("refill.after_commit")
            log_taken((run.claim.task_id for run in begun.runs), WORKER_ID)
            if begun.idle and len(begun.runs) > 1:
                # Other slots are free. More tasks may be ready only if several runs were claimed;
                # if one was claimed, no other task was ready.
                self._resources.waker.wake()
        return list(begun.runs)

    def wait_for_runs(self) -> list[Run]:
        """Listen until a task arrives; return its run, or an empty list if listening ends first."""
        if not self._may_continue:
            return []
        try:
            with self._resources.slot_subscription as subscription:
                while time.monotonic() < self._listen_until and not SHUTDOWN_FLAG.is_set:
                    signal, runs = self._listen(subscription)
                    if runs:
                        seconds = self._resources.settings.refill_seconds
                        self._continue_until = min(time.monotonic() + seconds, self._listen_until)
                    if runs or signal is SlotSignal.LEAVE:
                        return runs
        except DATABASE_ERRORS as error:
            emit(LogEvent.DATABASE_UNREACHABLE, error=error)
            return []
        if not SHUTDOWN_FLAG.is_set:
            # The time of this slot is up; the dispatcher requests another idle listener.
            self._resources.waker.wake()
        return []

    def _listen(self, subscription: SlotSubscription) -> tuple[SlotSignal, list[Run]]:
        """Listen on one connection until it must be checked, a task arrives or `LEAVE` does."""
        until = time.monotonic() + CONNECTION_TRUST_SECONDS
        with self._resources.db.reserve_connection() as reserved:
            batch, token = self._prepare_claim(reserved)
            while time.monotonic() < until and not SHUTDOWN_FLAG.is_set:
                signal = subscription.wait(SHUTDOWN_CHECK_SECONDS)
                if signal is SlotSignal.LEAVE:
                    return signal, []
                # A prepared claim that found no task can be repeated: its token is unused.
                if signal is not SlotSignal.NOTHING and (
                    runs := self._claim_first(reserved, batch, token)
                ):
                    return signal, runs
                if signal is SlotSignal.WAKE_UP:
                    subscription.wake_dispatchers()
        return SlotSignal.NOTHING, []

    def _prepare_claim(self, reserved: ReservedConnection) -> tuple[PackedBatch, UUID]:
        """Prepare the claim statement while waiting, so that a new task starts without delay."""
        token = uuid4()
        batch = prepare_idle_claim(
            reserved,
            self._resources.settings.pool,
            agent=WORKER_ID,
            token=token,
            claim_settings=self._claim_settings,
            lease=self._lease,
        )
        return batch, token

    def _claim_first(
        self, reserved: ReservedConnection, batch: PackedBatch, token: UUID
    ) -> list[Run]:
        """Run the prepared claim; return the started run, or an empty list if none was ready."""
        self.start_requested_at = time.monotonic()
        try:
            run = claim_for_idle_slot(reserved, batch)
        except DATABASE_ERRORS:
            # Postgres may have committed all the same.
            db, pool = self._resources.db, self._resources.settings.pool
            hand_back_token_by(db, pool, token, deadline=time.monotonic() + UNANSWERED_SECONDS)
            raise
        if run is None:
            return []
        fault("refill.after_commit")
        log_taken([run.claim.task_id], WORKER_ID)
        return [run]
