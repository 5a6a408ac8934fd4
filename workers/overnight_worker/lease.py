"""ClaimRegistry a run's lease, and ending the run when it may not go on.

Two threads beside the handler: the pulse asks Postgres and may wait for it; the guard never waits
for anything and does the ending. Behind both stands a watchdog that needs no Python to run, for
handlers that keep the interpreter to themselves.
"""

import faulthandler
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Lock, Thread
from types import TracebackType
from typing import Final, Self

import psutil
from sqlalchemy.exc import SQLAlchemyError

from overnight_server.domain.claims import Run
from overnight_server.domain.ids import show_task
from overnight_server.fault_points import fault
from overnight_server.outcome.heartbeat import Answer, Cost, heartbeat
from overnight_server.store.db import DatabaseUnreachable, Db
from overnight_server.telemetry import Event, emit
from overnight_worker.bundle import Bundle
from overnight_worker.claim_registry import CLAIM_REGISTRY
from overnight_worker.identity import WORKER_ID
from overnight_worker.result_mapping import stopped_ending
from overnight_worker.runners.python import RunContext
from overnight_worker.shutdown import DRAIN
from overnight_worker.stop_policy import StopPolicy, StopReason

TICK_SECONDS: Final = 0.1
# What recording a forced end may take before the process goes without it. The main process then
# tries too, and in a shutdown it needs the rest of its last words for that.
LAST_RECORD_SECONDS: Final = 2.0
# A run of a bundle that takes longer than this lets the others go.
SLOW_SECONDS: Final = 0.5
# Setting the watchdog costs a thread, so turns share a setting that is right to this much.
SHARED_SECONDS: Final = 0.25
SHARED_PARTS: Final = 30
# Told apart from a crash in the log of the pool, which replaces the child either way.
ENDED_BY_FORCE: Final = 75
# Why we take a run away for which nobody pays; of a time that is up and a cancel the row tells.
TAKING_AWAY: Final = frozenset({StopReason.SHUTDOWN, StopReason.WINDOW, StopReason.BUDGET})
STDERR: Final = 2


@dataclass(frozen=True, eq=False)
class Turn:
    """One run while it is being carried out, and the bundle it came with."""

    run: Run
    context: RunContext
    ladder: StopPolicy
    bundle: Bundle
    began: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> dict[str, object]:
        """How log lines call the run."""
        return {"queue_id": show_task(self.run.claim.task_id), "epoch": self.run.claim.epoch}


class Lease:
    """Keeps tasks ours while their handlers run; used as a context around all of a message.

    Runs take turns under one lease, and between bundles it rests. As soon as a run of a bundle
    turns out slow the others are given back, so what needs heartbeats is the run whose turn it is,
    and those that are over for as long as that takes to record.
    """

    def __init__(
        self, db: Db, *, interval: float, lease: timedelta, settled: Callable[[], None]
    ) -> None:
        self._db = db
        self._interval = interval
        self._lease = lease
        self._settled = settled
        self._turn: Turn | None = None
        self._latest: Turn | None = None
        self._shedding: list[Thread] = []
        # Held by whoever changes the turn, and by the guard while it judges one.
        self._judging = Lock()
        self._over = Flag()
        self._armed_for = -math.inf
        # Runs share a setting that is right to this much; short leases, as in tests, to less.
        self._shared = min(SHARED_SECONDS, lease.total_seconds() / SHARED_PARTS)
        self._far = lease.total_seconds() / 2
        self._answers: SimpleQueue[tuple[Turn, float, Answer]] = SimpleQueue()
        self._threads = [
            Thread(target=self._keep_guard, name="run guard", daemon=True),
            Thread(target=self._keep_pulse, name="run pulse", daemon=True),
        ]

    def take(self, turn: Turn) -> None:
        """Begin a run's turn."""
        with self._judging:
            self._turn = self._latest = turn
            self._arm(turn.ladder.watchdog_at)
        while self._threads:
            self._threads.pop().start()

    def rest(self) -> None:
        """End the turn, so that the ends of its bundle can be recorded.

        If the guard is just ending the run by force, this never returns.
        """
        with self._judging:
            self._turn = None
            self._calm(time.monotonic())
            CLAIM_REGISTRY.rest()
        while self._shedding:
            self._shedding.pop().join()

    def stand_down(self) -> None:
        """Let the process wait as long as it likes: it holds nothing."""
        self.rest()
        with self._judging:
            self._latest = None
            self._disarm()
            CLAIM_REGISTRY.take([])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop guarding, and let the process live on: its runs are recorded, or given up."""
        self.stand_down()
        self._over.set()

    def _keep_guard(self) -> None:
        while not self._over.wait(TICK_SECONDS):
            with self._judging:
                self._hear()
                now = time.monotonic()
                if self._turn is not None:
                    self._judge(self._turn, now)
                else:
                    self._calm(now)

    def _judge(self, turn: Turn, now: float) -> None:
        turn.ladder.look(now, draining=DRAIN.begun)
        if turn.context.at_ceiling:
            turn.ladder.ask(StopReason.BUDGET, now)
        if turn.ladder.reason is None:
            return
        if turn.ladder.reason != turn.context.stop_reason:
            turn.context.stop(turn.ladder.reason)
            self._arm(turn.ladder.watchdog_at)
        if turn.ladder.ends_at is not None and now >= turn.ladder.ends_at:
            self._end_by_force(turn, turn.ladder.reason)

    def _hear(self) -> None:
        """Take in what the pulse was answered since the last tick."""
        while True:
            try:
                turn, sent_at, answer = self._answers.get_nowait()
            except Empty:
                return
            if answer is Answer.LOST:
                emit(Event.RUN_LOST, **turn.name, worker=WORKER_ID)
                turn.ladder.ask(StopReason.LOST, time.monotonic())
                continue
            if answer is Answer.CANCEL:
                turn.ladder.ask(StopReason.CANCELLED, time.monotonic())
            if answer is Answer.HAND_BACK:
                turn.ladder.ask(StopReason.WINDOW, time.monotonic())
            if answer is Answer.BUDGET:
                turn.ladder.ask(StopReason.BUDGET, time.monotonic())
            turn.ladder.confirm(sent_at)
            if turn is self._turn:
                self._arm(turn.ladder.watchdog_at)

    def _keep_pulse(self) -> None:
        beaten, due = None, math.inf
        while not self._over.wait(self._until(due)):
            turn, now = self._latest, time.monotonic()
            if turn is not beaten:
                beaten, due = turn, turn.began + self._interval if turn else math.inf
            if turn is None:
                continue
            if turn.bundle.has_company and now - turn.began >= SLOW_SECONDS:
                self._let_others_go(turn)
            if now >= due:
                well = (turn is not self._turn or self._beat(turn, now)) and self._hold_on(turn)
                due = now + (self._interval if well else self._interval / 4)

    def _until(self, due: float) -> float:
        """Return how long the pulse may rest: to the next beat, or to the next look at a bundle."""
        turn = self._turn
        alert = turn is None or turn.bundle.has_company
        rest = min(due - time.monotonic(), SLOW_SECONDS if alert else self._interval)
        return max(0.0, rest)

    def _let_others_go(self, slow: Turn) -> None:
        """Shed the bundle of a slow run beside the pulse: recording may wait for long."""

        def shed() -> None:
            slow.bundle.shed(deadline=slow.ladder.trusted_until)
            self._settled()

        with self._judging:
            if slow is self._turn:
                self._shedding.append(Thread(target=shed, name="run shed", daemon=True))
                self._shedding[-1].start()

    def _hold_on(self, turn: Turn) -> bool:
        """Keep what is over until it is recorded, or the reaper would take finished work."""
        try:
            for claim in turn.bundle.unrecorded:
                heartbeat(self._db, claim, lease=self._lease)
        except (DatabaseUnreachable, SQLAlchemyError) as error:
            emit(Event.HEARTBEAT_FAILED, **turn.name, error=error)
            return False
        return True

    def _beat(self, turn: Turn, sent_at: float) -> bool:
        news = turn.context.take_news()
        spent = turn.context.cost_usd
        # Only what is new: a report of money takes the user's lane.
        cost = Cost(turn.run.user_id, spent) if spent > turn.context.reported_usd else None
        try:
            answer = heartbeat(
                self._db, turn.run.claim, lease=self._lease, progress=news, cost=cost
            )
        except (DatabaseUnreachable, SQLAlchemyError) as error:
            turn.context.put_back(news)
            emit(Event.HEARTBEAT_FAILED, **turn.name, error=error)
            return False
        turn.context.reported_usd = spent
        self._answers.put((turn, sent_at, answer))
        return True

    def _end_by_force(self, turn: Turn, reason: StopReason) -> None:
        # Before all else, for the watchdog is near.
        CLAIM_REGISTRY.rest(taken_away=reason in TAKING_AWAY)
        emit(Event.RUN_KILLED, **turn.name, reason=reason, pid=os.getpid())
        fault("lease.before_force")
        _end_offspring()
        last_word = Thread(target=self._record_forced, args=(turn, reason), daemon=True)
        last_word.start()
        last_word.join(LAST_RECORD_SECONDS)
        fault("lease.after_force")
        os._exit(ENDED_BY_FORCE)

    def _record_forced(self, turn: Turn, reason: StopReason) -> None:
        deadline = min(time.monotonic() + LAST_RECORD_SECONDS, turn.ladder.trusted_until)
        result = stopped_ending(turn.run, reason, turn.context)
        turn.bundle.end(turn.run, result)
        turn.bundle.shed(deadline=deadline, reason=reason)
        if result is not None:
            CLAIM_REGISTRY.take([])  # there is nothing left to tell
        self._settled()

    def _arm(self, instant: float) -> None:
        """Have this process killed at an instant, or a moment earlier, whatever its threads do.

        The file descriptor and not the object, which a library may have replaced by one without.
        """
        if not 0 <= instant - self._armed_for <= self._shared:
            self._armed_for = instant
            seconds = max(instant - time.monotonic(), TICK_SECONDS)
            faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)
        CLAIM_REGISTRY.handle(until=self._armed_for)

    def _calm(self, now: float) -> None:
        """Keep the watchdog from a process that only waits for Postgres, which has its own limits.

        To set it anew for every run costs more than to leave it be while it is far.
        """
        if now < self._armed_for < now + self._far:
            self._disarm()

    def _disarm(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._armed_for = -math.inf


def _end_offspring() -> None:
    """Kill the programs the run started, which would otherwise outlive it."""
    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
