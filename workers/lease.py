"""Holding a run's lease, and ending the run when it may not go on.

Two threads beside the handler: the pulse asks Postgres and may wait for it; the guard never waits
for anything and does the ending. Behind both stands a watchdog that needs no Python to run, for
handlers that keep the interpreter to themselves.
"""

import faulthandler
import os
import time
from collections.abc import Callable
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Thread
from types import TracebackType
from typing import Final, Self

import psutil
from sqlalchemy.exc import SQLAlchemyError

from app.domain.claims import Run
from app.domain.ids import show_task
from app.outcome.heartbeat import Answer, heartbeat
from app.store.db import DatabaseUnreachable, Db
from app.telemetry import Event, emit
from workers.ending import stopped_ending
from workers.identity import WORKER_ID
from workers.ladder import Ladder, StopReason
from workers.runners.python import RunContext
from workers.settling import settle_by
from workers.shutdown import DRAIN

TICK_SECONDS: Final = 0.1
# What recording a forced end may take before the process goes without it.
LAST_RECORD_SECONDS: Final = 3.0
# Told apart from a crash in the log of the pool, which replaces the child either way.
ENDED_BY_FORCE: Final = 75
STDERR: Final = 2


class Lease:
    """Keeps the task ours while the handler runs; used as a context around it."""

    def __init__(
        self,
        db: Db,
        run: Run,
        context: RunContext,
        ladder: Ladder,
        *,
        interval: float,
        lease: timedelta,
        settled: Callable[[], None],
    ) -> None:
        self._db = db
        self._run = run
        self._context = context
        self._ladder = ladder
        self._interval = interval
        self._lease = lease
        self._settled = settled
        self._over = Flag()
        self._answers: SimpleQueue[tuple[float, Answer]] = SimpleQueue()
        self._guard = Thread(target=self._keep_guard, name="run guard", daemon=True)
        self._pulse = Thread(target=self._keep_pulse, name="run pulse", daemon=True)

    @property
    def reason(self) -> StopReason | None:
        """Why the run was asked to stop, if it was; final once the context is left."""
        return self._ladder.reason

    @property
    def trusted_until(self) -> float:
        """Until when the run's end may still be recorded."""
        return self._ladder.trusted_until

    def __enter__(self) -> Self:
        self._arm()
        self._guard.start()
        self._pulse.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop guarding; if the guard is just ending the run by force, this never returns.

        The watchdog stays on for the recording that follows, until `disarm`.
        """
        self._over.set()
        self._guard.join()
        _watch(self._ladder.trusted_until)

    def _keep_guard(self) -> None:
        while not self._over.wait(TICK_SECONDS):
            self._hear()
            now = time.monotonic()
            self._ladder.look(now, draining=DRAIN.begun)
            if self._ladder.reason is None:
                continue
            if self._ladder.reason != self._context.stop_reason:
                self._context.stop(self._ladder.reason)
                self._arm()
            if self._ladder.ends_at is not None and now >= self._ladder.ends_at:
                self._end_by_force(self._ladder.reason)

    def _hear(self) -> None:
        """Take in what the pulse was answered since the last tick."""
        while True:
            try:
                sent_at, answer = self._answers.get_nowait()
            except Empty:
                return
            if answer is Answer.LOST:
                emit(Event.RUN_LOST, **self._name, worker=WORKER_ID)
                self._ladder.ask(StopReason.LOST, time.monotonic())
                continue
            if answer is Answer.CANCEL:
                self._ladder.ask(StopReason.CANCELLED, time.monotonic())
            self._ladder.confirm(sent_at)
            self._arm()

    def _keep_pulse(self) -> None:
        wait = self._interval
        while not self._over.wait(wait):
            sent_at = time.monotonic()
            alive = self._beat(sent_at)
            pause = self._interval if alive else self._interval / 4
            wait = max(0.0, sent_at + pause - time.monotonic())

    def _beat(self, sent_at: float) -> bool:
        news = self._context.take_news()
        try:
            answer = heartbeat(self._db, self._run.claim, lease=self._lease, progress=news)
        except (DatabaseUnreachable, SQLAlchemyError) as error:
            self._context.put_back(news)
            emit(Event.HEARTBEAT_FAILED, **self._name, error=error)
            return False
        self._answers.put((sent_at, answer))
        return True

    def _end_by_force(self, reason: StopReason) -> None:
        emit(Event.RUN_KILLED, **self._name, reason=reason, pid=os.getpid())
        _end_offspring()
        last_word = Thread(target=self._record_forced, args=(reason,), daemon=True)
        last_word.start()
        last_word.join(LAST_RECORD_SECONDS)
        os._exit(ENDED_BY_FORCE)

    def _record_forced(self, reason: StopReason) -> None:
        result = stopped_ending(self._run, reason, self._context)
        if result is None:
            return
        deadline = min(time.monotonic() + LAST_RECORD_SECONDS, self._ladder.trusted_until)
        if settle_by(self._db, self._run, result, deadline=deadline):
            self._settled()

    def _arm(self) -> None:
        _watch(self._ladder.watchdog_at)

    @property
    def _name(self) -> dict[str, object]:
        return {"queue_id": show_task(self._run.claim.task_id), "epoch": self._run.claim.epoch}


def disarm() -> None:
    """Let the process live on: its run is over and recorded, or given up."""
    faulthandler.cancel_dump_traceback_later()


def _watch(instant: float) -> None:
    """Kill this process at an instant of the monotonic clock, showing what every thread did.

    The file descriptor and not the object, which a library may have replaced by one without.
    """
    seconds = max(instant - time.monotonic(), TICK_SECONDS)
    faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)


def _end_offspring() -> None:
    """Kill the programs the run started, which would otherwise outlive it."""
    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
