"""The soft time limit: an exception in the function, in the main thread and in another one."""

import signal
import threading
import time

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from overnight.celery.soft_limit import soft_limit

SOON = 0.02


def test_a_function_that_waits_is_interrupted_in_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGALRM)
    left, _ = signal.setitimer(signal.ITIMER_REAL, 100)

    with pytest.raises(SoftTimeLimitExceeded), soft_limit(SOON):
        time.sleep(20)

    assert signal.getsignal(signal.SIGALRM) is before
    others_left, _ = signal.setitimer(signal.ITIMER_REAL, left)
    assert 90 < others_left < 100


def test_a_function_in_another_thread_is_interrupted_between_two_steps() -> None:
    ended: list[str] = []

    def work() -> None:
        try:
            with soft_limit(SOON):
                while True:
                    time.sleep(0.001)
        except SoftTimeLimitExceeded:
            ended.append("interrupted")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)

    assert ended == ["interrupted"]


@pytest.mark.parametrize("seconds", [None, 0, 60])
def test_a_function_within_its_limit_is_left_alone(seconds: float | None) -> None:
    def work() -> None:
        with soft_limit(seconds):
            ended.append(threading.current_thread())

    ended: list[threading.Thread] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()

    assert ended == [thread, threading.current_thread()]
