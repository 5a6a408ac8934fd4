"""Lets a Celery worker notice a migration that does not serve it; it then shuts down in order.

The check runs on Celery's timer, because the main process forks and must have no other thread.
"""

from typing import Any

from celery.bootsteps import StartStopStep

from overnight_server.dispatch.celery_settings import MAINTENANCE_QUEUE
from overnight_server.settings import current
from overnight_server.store.schema_watch import CHECK_SECONDS, end_on_mismatch
from overnight_worker.resources import database_url


class SchemaStep(StartStopStep):
    """The step of Celery's start that compares the schema from time to time."""

    requires = ("celery.worker.components:Timer",)

    def start(self, parent: Any) -> None:  # noqa: ANN401 - Celery's worker
        """Start the timer."""
        is_maintenance = MAINTENANCE_QUEUE in parent.app.amqp.queues.consume_from
        role, url = "maintenance" if is_maintenance else "worker", database_url(current())
        self._timer = parent.timer.call_repeatedly(CHECK_SECONDS, end_on_mismatch, (url, role))

    def close(self, parent: Any) -> None:  # noqa: ANN401, ARG002 - the same
        """Stop the timer."""
        self._timer.cancel()
