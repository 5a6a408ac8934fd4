"""Reports how long runs take: the gate bundles quick tasks, and forecasts use the durations."""

import json
import time
from math import ceil

from overnight_server.store.db import DATABASE_ERRORS, Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import get

REPORT_EVERY_SECONDS = 1.0
# A sample of many quick runs is enough, and leaves room for the samples of other workers.
SAMPLE_SIZE = 20

_log = get(__name__)


class DurationStats:
    """The durations of this process's runs since its last report, by task type."""

    def __init__(self) -> None:
        self._durations: dict[str, list[float]] = {}
        self._reported_at = 0.0

    def add(self, type_: str, seconds: float) -> None:
        """Add the duration of one run."""
        self._durations.setdefault(type_, []).append(seconds)

    def report(self, db: Db) -> None:
        """Write the durations to Postgres, at most once a second; a failed report is dropped.

        Reported is the mean per type, or a tenth of the slowest run if that is more.
        """
        now = time.monotonic()
        if not self._durations or now - self._reported_at < REPORT_EVERY_SECONDS:
            return
        self._reported_at = now
        rows = [
            {
                "type": type_,
                "seconds": max(sum(durations) / len(durations), max(durations) / 10),
                "recent": durations[:: ceil(len(durations) / SAMPLE_SIZE)],
            }
            for type_, durations in self._durations.items()
        ]
        self._durations.clear()
        try:
            db.atomically(
                lambda tx: tx.execute(
                    statement("record_durations"), {"durations": json.dumps(rows)}
                )
            )
        except DATABASE_ERRORS as error:
            _log.debug("a report of run durations was lost", error=error)
