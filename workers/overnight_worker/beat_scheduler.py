"""Beat's scheduler: it sleeps until the next tick is due.

Celery's own scheduler wakes up ten milliseconds before each tick and polls the clock until it is
due. In an idle deployment that cost more CPU than everything else that beat does.
"""

from celery import beat


class Scheduler(beat.Scheduler):
    """Celery's in-memory scheduler without the polling."""

    def adjust(self, n: float, drift: float = 0.0) -> float:
        """Return how long to sleep when the next tick is due in `n` seconds."""
        return n + drift
