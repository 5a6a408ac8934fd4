"""Log lines about refused requests, at most 10 in 10 seconds, with the number of lines left out.

Whoever sends bad requests must not fill the log.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from overnight_server.telemetry import LogEvent, emit

MAX_LINES: Final = 10
PERIOD_SECONDS: Final = 10.0


class LogThrottle:
    """Counts the lines of each name; used by all threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began_at = clock()
        self._lines: Counter[str] = Counter()

    def allows(self, name: str) -> bool:
        """Count a line of this name; return whether it is to be written."""
        self.report()
        with self._lock:
            self._lines[name] += 1
            return self._lines[name] <= MAX_LINES

    def report(self) -> None:
        """After each period, write how many lines of each name were left out in it."""
        with self._lock:
            if self._clock() - self._began_at < PERIOD_SECONDS:
                return
            lines, self._lines = self._lines, Counter()
            self._began_at = self._clock()
        for name, count in lines.items():
            if count > MAX_LINES:
                emit(LogEvent.LOG_LINES_LEFT_OUT, lines=name, count=count - MAX_LINES)

    def emit(self, event: LogEvent, **fields: object) -> None:
        """Write a log event, unless 10 of its kind were written in this period of 10 s."""
        if self.allows(event.log_name):
            emit(event, **fields)

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide the same for a line of a library; for `logging.Logger.addFilter`."""
        return self.allows(f"{record.name}: {record.msg}")
