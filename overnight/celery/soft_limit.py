"""Celery's soft time limit: an exception in the function of the task when the time is over."""

import ctypes
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from celery.exceptions import SoftTimeLimitExceeded

SOON_SECONDS = 0.001


@contextmanager
def soft_limit(seconds: float | None) -> Iterator[None]:
    """Raise SoftTimeLimitExceeded in this thread if the block takes longer.

    In the main thread a signal also interrupts a function that waits. In another thread, as in a
    pull agent, the exception is raised when the function executes Python code again.
    """
    if not seconds:
        yield
    elif threading.current_thread() is threading.main_thread():
        with _by_signal(seconds):
            yield
    else:
        with _by_thread(seconds):
            yield


@contextmanager
def _by_signal(seconds: float) -> Iterator[None]:
    def over(_number: int, _frame: FrameType | None) -> None:
        raise SoftTimeLimitExceeded

    previous = signal.signal(signal.SIGALRM, over)
    started = time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if left:
            # Somebody else's alarm goes on; one that is due by now comes at once.
            due = max(left - (time.monotonic() - started), SOON_SECONDS)
            signal.setitimer(signal.ITIMER_REAL, due, interval)


@contextmanager
def _by_thread(seconds: float) -> Iterator[None]:
    thread = ctypes.c_ulong(threading.get_ident())
    lock, is_over = threading.Lock(), False

    def over() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    thread, ctypes.py_object(SoftTimeLimitExceeded)
                )

    timer = threading.Timer(seconds, over)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            is_over = True
        timer.cancel()
