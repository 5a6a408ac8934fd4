"""Beat's scheduler: it sleeps until the next tick is due, and logs an outage of Redis once.

Celery's own scheduler wakes up ten milliseconds before each tick and polls the clock until it is
due. In an idle deployment that cost more CPU than everything else that beat does. It also logs two
stack traces for every message that Redis does not take.
"""

from typing import Any

from celery import beat
from kombu import Producer

from overnight_server.telemetry import LogEvent, Outage


class Scheduler(beat.Scheduler):
    """Celery's in-memory scheduler without the polling and the stack traces."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - Celery's own
        super().__init__(*arguments, **options)
        self._redis_outage = Outage(LogEvent.BROKER_UNREACHABLE, LogEvent.BROKER_BACK)

    def adjust(self, n: float, drift: float = 0.0) -> float:
        """Return how long to sleep when the next tick is due in `n` seconds."""
        return n + drift

    def apply_entry(self, entry: beat.ScheduleEntry, producer: Producer | None = None) -> None:
        """Send the message of a tick; if Redis does not take it, the next tick sends another."""
        try:
            self.apply_async(entry, producer=producer, advance=False)
        except beat.SchedulingError as error:
            self._redis_outage.begin(error)
        else:
            self._redis_outage.end()
