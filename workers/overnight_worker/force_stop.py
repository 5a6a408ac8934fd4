"""Ends the process of a run that ignores its stop: a timeout, a cancel, a shutdown, a lost lease.

`stop_policy` decides when a run must end, and the stop thread of `lease` calls `end_by_force` then.
If no Python thread can run, because a handler never releases the interpreter lock, the
`ProcessWatchdog` ends the process: it is a thread of the C module faulthandler.
"""

import faulthandler
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Thread
from typing import Final, NoReturn

from overnight_server.domain.claims import Run
from overnight_server.domain.ids import show_task
from overnight_server.fault_points import fault
from overnight_server.telemetry import LogEvent, emit
from overnight_worker.bundle import Bundle
from overnight_worker.claim_registry import CLAIM_REGISTRY
from overnight_worker.full_log import FullLog
from overnight_worker.pool_guard import POOL_GUARD
from overnight_worker.result_mapping import stopped_result
from overnight_worker.run_context import RunContext
from overnight_worker.run_log import RunLog
from overnight_worker.stop_policy import StopPolicy, StopReason

# What recording a forced end may take before the process exits without it. The main process then
# tries too, and in a shutdown it needs the rest of `shutdown.FINAL_SECONDS` for that.
FINAL_RECORD_SECONDS: Final = 2.0
# The shortest time that the watchdog is set to.
MIN_WATCHDOG_SECONDS: Final = 0.1
# Setting the watchdog starts a thread, so runs share a setting that is right to this much.
SHARED_SECONDS: Final = 0.25
SHARED_PARTS: Final = 30
# Tells a forced end from a crash in the log of the pool, which replaces the process either way.
FORCED_EXIT_CODE: Final = 75
# The worker ends runs on purpose for these reasons, so they spend no attempt. For a timeout or a
# cancel, the task's row shows how to settle the run.
ENDED_BY_WORKER: Final = frozenset({StopReason.SHUTDOWN, StopReason.WINDOW, StopReason.BUDGET})
STDERR: Final = 2


@dataclass(frozen=True, eq=False)
class ActiveRun:
    """A run whose handler is running, the bundle it belongs to, and its log."""

    run: Run
    context: RunContext
    stop_policy: StopPolicy
    bundle: Bundle
    log: RunLog
    full_log: FullLog | None = None
    started_at: float = field(default_factory=time.monotonic)

    @property
    def log_fields(self) -> dict[str, object]:
        """The fields that identify the run in log lines."""
        return {"queue_id": show_task(self.run.claim.task_id), "epoch": self.run.claim.epoch}


def end_by_force(
    active: ActiveRun,
    reason: StopReason,
    *,
    on_settled: Callable[[], None],
    is_unreachable: bool = False,
) -> NoReturn:
    """Kill the programs of a run, record how the run ended, and exit this process.

    With `is_unreachable`, Postgres did not answer the last heartbeat: if the lease ends for that
    reason, the deployment is at fault, and the run is handed back when Postgres answers again.
    Recording may take FINAL_RECORD_SECONDS; then the process exits without it, and the main process
    of the worker settles the claim. `on_settled` is called when the end is recorded.
    """
    # First of all, because the watchdog may act at any moment.
    is_outage = reason is StopReason.LOST and is_unreachable
    CLAIM_REGISTRY.handler_ended(ended_by_worker=reason in ENDED_BY_WORKER or is_outage)
    emit(LogEvent.RUN_KILLED, **active.log_fields, reason=reason, pid=os.getpid())
    fault("lease.before_force")
    POOL_GUARD.end_programs()
    recording = Thread(target=_record_end, args=(active, reason, on_settled), daemon=True)
    recording.start()
    recording.join(FINAL_RECORD_SECONDS)
    fault("lease.after_force")
    os._exit(FORCED_EXIT_CODE)


def _record_end(active: ActiveRun, reason: StopReason, on_settled: Callable[[], None]) -> None:
    trusted_until = active.stop_policy.trusted_until
    deadline = min(time.monotonic() + FINAL_RECORD_SECONDS, trusted_until)
    active.log.close()
    result = stopped_result(active.run, reason, active.context)
    active.bundle.add_result(active.run, result)
    active.bundle.release_others(deadline=deadline, reason=reason)
    if result is not None:
        CLAIM_REGISTRY.set_claims([])  # the main process has nothing left to settle
    on_settled()


class ProcessWatchdog:
    """Kills this process at a set instant of the monotonic clock, whatever its threads do."""

    def __init__(self, lease_seconds: float) -> None:
        self._armed_for = -math.inf
        # With a short lease, as in tests, one setting of the timer serves for less time.
        self._shared = min(SHARED_SECONDS, lease_seconds / SHARED_PARTS)
        self._far = lease_seconds / 2

    def arm(self, instant: float) -> None:
        """Have this process killed at an instant, or a moment earlier.

        The watchdog writes to the file descriptor, because a library may have replaced the stderr
        object by one without a descriptor.
        """
        if not 0 <= instant - self._armed_for <= self._shared:
            self._armed_for = instant
            seconds = max(instant - time.monotonic(), MIN_WATCHDOG_SECONDS)
            faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)
        CLAIM_REGISTRY.handler_started(until=self._armed_for)

    def disarm_if_near(self, now: float) -> None:
        """Disarm a watchdog that would soon kill a process which only waits for Postgres.

        A watchdog that is far away stays armed: setting it again for every run costs more.
        """
        if now < self._armed_for < now + self._far:
            self.disarm()

    def disarm(self) -> None:
        """Let the process live until the watchdog is armed again."""
        faulthandler.cancel_dump_traceback_later()
        self._armed_for = -math.inf
