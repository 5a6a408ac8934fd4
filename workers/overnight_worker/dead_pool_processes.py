"""Settles the claims of pool processes that died, without waiting for their leases to end."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from overnight.errors import StaleAttempt
from overnight_server.domain.claims import Claim
from overnight_server.domain.results import Result
from overnight_server.fault_points import fault
from overnight_server.maintenance.reap import settle_runs_of_dead_process
from overnight_server.outcome.agent_claims import read_claim
from overnight_server.outcome.settle import hand_back, settle
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.telemetry import LogEvent, emit
from overnight_worker.claim_registry import CLAIM_REGISTRY, ClaimRegistry, OrphanedClaims
from overnight_worker.identity import WORKER_ID
from overnight_worker.one_shot_connection import with_connection
from overnight_worker.pool_guard import POOL_GUARD
from overnight_worker.run_directory import remove_left_workspaces
from overnight_worker.shutdown import SHUTDOWN_FLAG

# The main loop is blocked during each try, so the pause between tries grows.
FIRST_PAUSE_SECONDS: Final = 2.0
# After an outage the reaper waits for one lease, in which these tries must come first.
TRIES_PER_LEASE: Final = 3
# Why a claim of a bundle is handed back whose handler was not called before the process died.
PROCESS_DIED: Final = "process_died"


@dataclass(eq=False)
class UnsettledProcess:
    """The claims of one dead process that are not settled yet, and when to try again.

    `died_at` and `due` are instants of the monotonic clock.
    """

    orphaned: OrphanedClaims
    died_at: float
    due: float = 0.0
    pause: float = FIRST_PAUSE_SECONDS

    def postpone(self, now: float, longest_pause: float) -> None:
        """Set the next try; the pause doubles each time, up to the longest."""
        self.due = now + min(self.pause, longest_pause)
        self.pause *= 2


class DeadPoolProcesses:
    """The dead processes of one pool, kept in its main process until their claims are settled.

    `end_programs` ends what a dead process left behind; nobody gets a claim before that.
    """

    def __init__(
        self, registry: ClaimRegistry, end_programs: Callable[[], None] = lambda: None
    ) -> None:
        self._registry = registry
        self._end_programs = end_programs
        self._unsettled: list[UnsettledProcess] = []

    def collect(self) -> None:
        """Take over the claims of dead processes, before new processes reuse their records."""
        if not self._registry.has_dead_process:
            return
        self._end_programs()
        now = time.monotonic()
        self._unsettled += [
            UnsettledProcess(orphaned, died_at=now)
            for orphaned in self._registry.collect_orphaned_claims()
        ]

    def settle(self, settings: Settings) -> None:
        """Settle the claims of dead processes; a claim that cannot be settled delays no other."""
        self.collect()
        now = time.monotonic()
        due = [process for process in self._unsettled if process.due <= now]
        if not due:
            return
        fault("dead_pool_processes.before_settle")
        for process in due:
            process.postpone(now, settings.lease_seconds / TRIES_PER_LEASE)

        def settle_due(db: Db) -> None:
            for process in due:
                self._settle(db, process, settings)

        with_connection(settings, settle_due)

    def _settle(self, db: Db, process: UnsettledProcess, settings: Settings) -> None:
        orphaned = process.orphaned
        # A run that ends while the worker shuts down ends because of the shutdown.
        ended_by_worker = orphaned.ended_by_worker or SHUTDOWN_FLAG.is_set
        try:
            _record_finished(db, orphaned.finished, timedelta(seconds=settings.lease_seconds))
            hand_back(db, orphaned.waiting, agent=WORKER_ID, reason=PROCESS_DIED)
            settle_runs_of_dead_process(
                db,
                orphaned.claims,
                handling=orphaned.in_handler,
                ended_by_worker=ended_by_worker,
                out_of_memory=orphaned.out_of_memory,
                dead_for=timedelta(seconds=time.monotonic() - process.died_at),
            )
        except SQLAlchemyError as error:
            emit(LogEvent.DATABASE_UNREACHABLE, error=error)
        else:
            self._unsettled.remove(process)


def _record_finished(db: Db, finished: Sequence[tuple[Claim, Result]], lease: timedelta) -> None:
    """Record the results of runs that had ended before their process died."""
    for claim, result in finished:
        # The process may have recorded it itself; then the claim is no longer held.
        with suppress(StaleAttempt):
            settle(db, read_claim(db, claim, lease).run, result, agent=WORKER_ID)


def _clear_up() -> None:
    """End the programs that dead processes left, and remove the workspaces of their commands."""
    POOL_GUARD.end_adopted()
    remove_left_workspaces()


DEAD_POOL_PROCESSES: Final = DeadPoolProcesses(CLAIM_REGISTRY, _clear_up)
