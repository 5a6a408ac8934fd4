"""Keeps the lease of a run with heartbeats, and ends the run when it may not go on.

Threads beside the handler: the heartbeat thread writes to Postgres and may wait for it; the stop
thread waits for nothing and ends runs. A run longer than SLOW_SECONDS gets a third one, which waits
for cancels on Redis and wakes the heartbeat thread. `force_stop` ends the process of a run that
does not stop.
"""

import math
import time
from collections.abc import Callable
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Lock, Thread
from types import TracebackType
from typing import Final, Self

from overnight_server.outcome.heartbeat import CostSoFar, HeartbeatAnswer, heartbeat
from overnight_server.store.db import DATABASE_ERRORS, Db
from overnight_server.telemetry import LogEvent, emit
from overnight_server.wakeups.wake import WakeUpListener
from overnight_worker.claim_registry import CLAIM_REGISTRY
from overnight_worker.force_stop import ActiveRun, ProcessWatchdog, end_by_force
from overnight_worker.identity import WORKER_ID
from overnight_worker.shutdown import SHUTDOWN_FLAG
from overnight_worker.stop_policy import StopReason

TICK_SECONDS: Final = 0.1
# A run that takes longer releases the others of its bundle, and listens for cancels.
SLOW_SECONDS: Final = 0.5
# Cancels, progress and costs of commands cause early heartbeats, at least this many seconds apart.
# The cost that a handler reports is sent at once.
EARLY_HEARTBEAT_SECONDS: Final = 0.5
# How long a handler that reports a cost waits at most until the budgets are checked.
COST_ANSWER_SECONDS: Final = 5.0
STOP_REASONS: Final = {
    HeartbeatAnswer.LOST: StopReason.LOST,
    HeartbeatAnswer.CANCEL: StopReason.CANCELLED,
    HeartbeatAnswer.HAND_BACK: StopReason.WINDOW,
    HeartbeatAnswer.BUDGET: StopReason.BUDGET,
}


class Lease:
    """Keeps the claims of a message while their handlers run; used as a context.

    The runs of one message are executed one after the other, and one Lease object keeps all their
    claims. When a run of a bundle is slow, the others are handed back. So only two kinds of claims
    need heartbeats: that of the current run, and those of finished runs until they are recorded.
    """

    def __init__(
        self,
        db: Db,
        *,
        interval: float,
        lease: timedelta,
        on_settled: Callable[[], None],
        cancel_listener: Callable[[], WakeUpListener | None] | None = None,
    ) -> None:
        self._db = db
        self._interval = interval
        self._lease = lease
        self._on_settled = on_settled
        self._cancel_listener = cancel_listener
        self._current: ActiveRun | None = None
        self._latest: ActiveRun | None = None
        self._releasing: list[Thread] = []
        # Held while the current run changes, and by the stop thread while it decides about it.
        self._deciding = Lock()
        self._over = Flag()
        self._heartbeat_wanted = Flag()
        self._awaiting_answer: SimpleQueue[Flag] = SimpleQueue()
        # Whether Postgres did not answer the last heartbeat.
        self._is_unreachable = False
        self._watchdog = ProcessWatchdog(lease.total_seconds())
        self._answers: SimpleQueue[tuple[ActiveRun, float, HeartbeatAnswer]] = SimpleQueue()
        self._threads = [
            Thread(target=self._stop_runs, name="run stop", daemon=True),
            Thread(target=self._send_heartbeats, name="run heartbeat", daemon=True),
        ]

    def begin_run(self, active: ActiveRun) -> None:
        """Make a run the current one."""
        with self._deciding:
            self._current = self._latest = active
            self._watchdog.arm(active.stop_policy.watchdog_at)
        while self._threads:
            self._threads.pop().start()

    def end_run(self) -> None:
        """End the current run, so that its bundle can be recorded.

        If the stop thread is just ending the run by force, this never returns.
        """
        with self._deciding:
            self._current = None
            self._watchdog.disarm_if_near(time.monotonic())
            CLAIM_REGISTRY.handler_ended()
        while self._releasing:
            self._releasing.pop().join()

    def send_soon(self) -> None:
        """Send a heartbeat soon, with the progress and costs that the run reports until then."""
        self._heartbeat_wanted.set()

    def send_cost(self) -> None:
        """Send what the current run has cost, and wait until the budgets are checked.

        If Postgres does not answer, the handler goes on, and the next heartbeat sends the cost.
        """
        answered = Flag()
        self._awaiting_answer.put(answered)
        self._heartbeat_wanted.set()
        answered.wait(COST_ANSWER_SECONDS)

    def go_idle(self) -> None:
        """Send no more heartbeats and disarm the watchdog: the process holds no claim."""
        self.end_run()
        with self._deciding:
            self._latest = None
            self._watchdog.disarm()
            CLAIM_REGISTRY.set_claims([])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the threads. By now every run is recorded or handed back."""
        self.go_idle()
        self._over.set()
        self._heartbeat_wanted.set()

    def _stop_runs(self) -> None:
        while not self._over.wait(TICK_SECONDS):
            with self._deciding:
                self._apply_answers()
                now = time.monotonic()
                if self._current is not None:
                    self._decide(self._current, now)
                else:
                    self._watchdog.disarm_if_near(now)

    def _decide(self, active: ActiveRun, now: float) -> None:
        policy = active.stop_policy
        policy.check(now, shutting_down=SHUTDOWN_FLAG.is_set)
        if active.context.at_ceiling:
            policy.request_stop(StopReason.BUDGET, now)
        self._request_stop(active)
        if (
            policy.reason is not None
            and policy.forced_end_at is not None
            and now >= policy.forced_end_at
        ):
            end_by_force(
                active,
                policy.reason,
                on_settled=self._on_settled,
                is_unreachable=self._is_unreachable,
            )

    def _request_stop(self, active: ActiveRun) -> None:
        """Show the handler the reason to stop, if there is one that it does not see yet."""
        policy = active.stop_policy
        if policy.reason is not None and policy.reason != active.context.stop_reason:
            active.context.stop(policy.reason)
            self._watchdog.arm(policy.watchdog_at)

    def _apply_answers(self) -> None:
        """Apply the answers to heartbeats that came since the last tick."""
        while True:
            try:
                active, sent_at, answer = self._answers.get_nowait()
            except Empty:
                return
            if answer in STOP_REASONS:
                active.stop_policy.request_stop(STOP_REASONS[answer], time.monotonic())
            if answer is HeartbeatAnswer.LOST:
                emit(LogEvent.RUN_LOST, **active.log_fields, worker=WORKER_ID)
                continue
            active.stop_policy.confirm_lease(sent_at)
            if active is self._current:
                self._watchdog.arm(active.stop_policy.watchdog_at)

    def _send_heartbeats(self) -> None:
        previous, due, sent_at = None, math.inf, -math.inf
        while True:
            is_early = self._heartbeat_wanted.wait(self._seconds_until(due))
            if self._over.is_set():
                return
            active, now = self._latest, time.monotonic()
            if active is not previous:
                previous, due = active, active.started_at + self._interval if active else math.inf
            waiting: list[Flag] = []
            if is_early:
                self._heartbeat_wanted.clear()
                waiting = self._handlers_that_wait()
                due = now if waiting else min(due, max(now, sent_at + EARLY_HEARTBEAT_SECONDS))
            if active is None:
                continue
            if now - active.started_at >= SLOW_SECONDS:
                self._listen_for_cancels()
                if active.bundle.has_others:
                    self._release_others(active)
            if now >= due:
                sent_at = now
                is_sent = (
                    active is not self._current or self._heartbeat(active, now)
                ) and self._extend_unrecorded(active)
                due = now + (self._interval if is_sent else self._interval / 4)
                self._answer(active, waiting)

    def _handlers_that_wait(self) -> list[Flag]:
        """Return the flags of handler threads that wait until their cost is sent."""
        waiting = []
        while not self._awaiting_answer.empty():
            waiting.append(self._awaiting_answer.get_nowait())
        return waiting

    def _answer(self, active: ActiveRun, waiting: list[Flag]) -> None:
        """Apply the answer to a heartbeat now, so that handlers that waited for it see a stop."""
        if not waiting:
            return
        with self._deciding:
            self._apply_answers()
            if active is self._current:
                self._request_stop(active)
        for answered in waiting:
            answered.set()

    def _seconds_until(self, due: float) -> float:
        """Return how long the heartbeat thread may sleep."""
        active = self._current
        # This thread must notice a slow run in time, to release the rest of its bundle and to start
        # listening for cancels.
        must_check = active is None or active.bundle.has_others or self._cancel_listener is not None
        sleep = SLOW_SECONDS if must_check else self._interval
        return max(0.0, min(due - time.monotonic(), sleep))

    def _listen_for_cancels(self) -> None:
        """Start the thread that waits for cancels, unless it runs already."""
        if self._cancel_listener is None:
            return
        listener, self._cancel_listener = self._cancel_listener(), None
        if listener is None:
            return

        def listen() -> None:
            while not self._over.is_set():
                if listener.wait(self._interval, self._over):
                    self._heartbeat_wanted.set()
            listener.close()

        Thread(target=listen, name="run cancels", daemon=True).start()

    def _release_others(self, slow: ActiveRun) -> None:
        """Release the bundle of a slow run in a thread: recording may take long."""

        def release() -> None:
            slow.bundle.release_others(deadline=slow.stop_policy.trusted_until)
            self._on_settled()

        with self._deciding:
            if slow is self._current:
                self._releasing.append(Thread(target=release, name="run release", daemon=True))
                self._releasing[-1].start()

    def _extend_unrecorded(self, active: ActiveRun) -> bool:
        """Extend the leases of finished runs until they are recorded; False if Postgres failed."""
        try:
            for claim in active.bundle.unrecorded_claims:
                heartbeat(self._db, claim, lease=self._lease)
        except DATABASE_ERRORS as error:
            emit(LogEvent.HEARTBEAT_FAILED, **active.log_fields, error=error)
            return False
        return True

    def _heartbeat(self, active: ActiveRun, sent_at: float) -> bool:
        """Send one heartbeat of the current run; False if Postgres failed."""
        context = active.context
        progress, spent_usd = context.take_progress(), context.cost_usd
        # Sent only when it grew: a cost locks the user's lane.
        cost = (
            CostSoFar(active.run.user_id, spent_usd) if spent_usd > context.reported_usd else None
        )
        try:
            answer = heartbeat(
                self._db, active.run.claim, lease=self._lease, progress=progress, cost=cost
            )
        except DATABASE_ERRORS as error:
            self._is_unreachable = True
            context.restore_progress(progress)
            emit(LogEvent.HEARTBEAT_FAILED, **active.log_fields, error=error)
            return False
        self._is_unreachable = False
        context.reported_usd = spent_usd
        self._answers.put((active, sent_at, answer))
        return True
