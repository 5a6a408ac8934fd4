"""A signal ends beat even in the middle of a tick."""

import os
import signal
from collections.abc import Iterator

import pytest
from celery import Celery
from celery.beat import Service

from overnight_worker.shutdown import end_beat_on_signals


@pytest.fixture
def service() -> Iterator[Service]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    service = Service(Celery("test", set_as_current=False))
    end_beat_on_signals(service)
    yield service
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait(service: Service, number: signal.Signals) -> None:
    with pytest.raises(SystemExit):
        os.kill(os.getpid(), number)


def test_a_signal_during_a_failing_tick_still_ends_beat(service: Service) -> None:
    with pytest.raises(OSError, match="closed"):
        _fail_while_ending()

    assert service._is_shutdown.is_set()


def _fail_while_ending() -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        raise OSError("closed")
