"""The orderly shutdown of a worker: a flag that every pool process reads, and a time limit.

Celery's warm shutdown waits for its runs without limit, and its cold shutdown kills them. Here a
worker always shuts down warm, and `lease.py` ends the runs within their grace, so that Celery has
nothing left to wait for.
"""

import atexit
import mmap
import os
import signal
from types import FrameType
from typing import Final

from celery.beat import Service

from overnight_server.telemetry import LogEvent, emit
from overnight_worker.restart import RESTART

# What the worker may take after the last run's grace: to hand runs back, to withdraw its slots, and
# to stop waiting for a Redis that does not answer.
FINAL_SECONDS: Final = 4.0
# The interpreter drops its signal handlers while it ends: a late alarm would kill it.
atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)


class ShutdownFlag:
    """Whether this worker is shutting down; one byte shared with pool processes forked later."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)

    @property
    def is_set(self) -> bool:
        """Whether the shutdown has begun."""
        return self._byte[0] == 1

    def set(self) -> None:
        """Let every pool process see that the shutdown has begun."""
        self._byte[0] = 1


SHUTDOWN_FLAG: Final = ShutdownFlag()


def begin(grace: float) -> None:
    """Begin the shutdown of the main process and limit how long it takes.

    Called inside a signal handler, so it does next to nothing. The alarm ends a main process that
    hangs on a silent Redis: by then its pool processes have handed back what they ran.
    """
    if SHUTDOWN_FLAG.is_set:
        return
    SHUTDOWN_FLAG.set()
    signal.signal(signal.SIGALRM, _exit_now)
    signal.setitimer(signal.ITIMER_REAL, grace + FINAL_SECONDS)


def shut_down_warm_on_every_signal() -> None:
    """Let SIGINT and SIGQUIT start the same orderly shutdown as SIGTERM."""
    orderly = signal.getsignal(signal.SIGTERM)
    for signum in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(signum, orderly)


def end_beat_on_signals(service: Service) -> None:
    """Let SIGTERM and SIGINT end beat even in the middle of a tick.

    Celery's own handler closes the connection and raises SystemExit; in the middle of a tick the
    error of the closed connection replaces SystemExit, and beat goes on for ever.
    """

    def end(_signum: int, _frame: FrameType | None) -> None:
        service.stop()
        raise SystemExit

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, end)


def ignore_sigterm() -> None:
    """Let an idle pool process survive a SIGTERM to the process group: the main process ends it.

    Celery resets every signal handler of a pool process, but leaves an ignored signal ignored.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def ignore_sigterm_while_running() -> None:
    """Let a pool process survive SIGTERM during a run, with a handler that does nothing.

    Programs that the run starts would inherit an ignored signal, but not a handler.
    """
    signal.signal(signal.SIGTERM, _do_nothing)


def _exit_now(_signum: int, _frame: FrameType | None) -> None:
    try:
        emit(
            LogEvent.SERVICE_STOPPED,
            role="worker",
            pid=os.getpid(),
            reason="shutdown took too long",
        )
    finally:
        # Writing the line may fail if it interrupts another; the exit must not.
        RESTART.execute()
        os._exit(0)


def _do_nothing(_signum: int, _frame: FrameType | None) -> None:
    pass
