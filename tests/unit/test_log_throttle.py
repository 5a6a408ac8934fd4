"""Log lines about refused requests: a few of each kind in a period, and the number of the rest."""

import pytest

from overnight_server.api.http.log_throttle import MAX_LINES, PERIOD_SECONDS, LogThrottle
from overnight_server.telemetry import LogEvent


class Time:
    """The time that the throttle reads."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_lines_above_the_limit_are_counted_and_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time = Time()
    throttle = LogThrottle(time)
    for _ in range(MAX_LINES + 7):
        throttle.emit(LogEvent.CONNECTION_CLOSED, reason="late")
    throttle.emit(LogEvent.DATABASE_UNREACHABLE, error="gone")

    throttle.report()
    time.seconds += PERIOD_SECONDS
    throttle.report()
    throttle.report()
    throttle.emit(LogEvent.CONNECTION_CLOSED, reason="late again")

    lines = caplog.messages
    assert sum("queue=connection_closed reason=late" in line for line in lines) == MAX_LINES
    assert sum("queue=database_unreachable" in line for line in lines) == 1
    [left_out] = [line for line in lines if "queue=log_lines_left_out" in line]
    assert left_out.endswith("lines=connection_closed count=7")
    assert lines[-1].endswith('reason="late again"')
