"""Celery's consumer, which waits while Redis is full instead of ending the worker."""

import time
from typing import Final

from celery.worker.consumer import Consumer as CeleryConsumer
from redis.exceptions import OutOfMemoryError

from overnight_server.telemetry import LogEvent, emit

FULL_WAIT_SECONDS: Final = 2.0


class Consumer(CeleryConsumer):
    """Receives messages; `redis_transport` makes a full Redis an error of the connection."""

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Close the connection; if Redis is full, wait before Celery connects again."""
        super().on_connection_error_after_connected(exc)
        if isinstance(exc, OutOfMemoryError):
            emit(LogEvent.BROKER_FULL, error=exc)
            time.sleep(FULL_WAIT_SECONDS)
