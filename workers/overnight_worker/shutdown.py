"""An orderly end of a worker: one flag that every child sees, and a limit on the whole.

Celery's warm shutdown waits for its runs without limit, and its cold one kills them. Here a worker
always shuts down warm, and the runs themselves are given up within their grace (`lease.py`),
so that Celery has nothing left to wait for.
"""

import atexit
import mmap
import os
import signal
from types import FrameType
from typing import Final

from celery.beat import Service

from overnight_server.telemetry import Event, emit

# How long the worker may still take after the last run's grace: to hand runs back, to leave, and
# to be rid of a Redis that does not answer.
LAST_WORDS_SECONDS: Final = 4.0
# Python takes a while to tidy up and has given up its handlers by then: an alarm would kill it.
atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)


class Drain:
    """Whether this worker is shutting down; one byte shared with all children forked later."""

    def __init__(self) -> None:
        self._flag = mmap.mmap(-1, 1)

    @property
    def begun(self) -> bool:
        """Whether the shutdown has begun."""
        return self._flag[0] == 1

    def begin(self) -> None:
        """Tell every child."""
        self._flag[0] = 1


DRAIN: Final = Drain()


def begin(grace: float) -> None:
    """Begin the shutdown of the main process and see to it that it ends.

    Called inside a signal handler, so it does next to nothing. The alarm is for a main process
    that hangs on a silent Redis: by then its children have handed back what they ran.
    """
    if DRAIN.begun:
        return
    DRAIN.begin()
    signal.signal(signal.SIGALRM, _leave_now)
    signal.setitimer(signal.ITIMER_REAL, grace + LAST_WORDS_SECONDS)


def always_warm() -> None:
    """Let every signal that asks for an end mean the same orderly end as SIGTERM."""
    orderly = signal.getsignal(signal.SIGTERM)
    for signum in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(signum, orderly)


def end_beat(service: Service) -> None:
    """Let beat end however inconvenient the moment.

    Celery's own handler closes the connection and raises; in the middle of a tick the closed
    connection's error would take the place of what was raised, and beat would tick on for ever.
    """

    def leave(_signum: int, _frame: FrameType | None) -> None:
        service.stop()
        raise SystemExit

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, leave)


def outlive_the_group() -> None:
    """Let an idle child outlive a SIGTERM to the whole process group; the main process decides.

    Being deaf is the one choice the pool leaves alone when it sets up the child's signals.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def outlive_the_group_while_running() -> None:
    """Do the same for a run, with a handler: programs it starts would inherit being deaf."""
    signal.signal(signal.SIGTERM, _nothing)


def _leave_now(_signum: int, _frame: FrameType | None) -> None:
    try:
        emit(Event.SERVICE_STOPPED, role="worker", pid=os.getpid(), reason="shutdown took too long")
    finally:
        # The line may fail if it interrupts another; leaving may not.
        os._exit(0)


def _nothing(_signum: int, _frame: FrameType | None) -> None:
    pass
