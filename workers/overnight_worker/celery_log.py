"""Limits Celery's own log to what the events of `telemetry` do not report better."""

import logging
from typing import Final

from billiard.util import get_logger

from overnight_worker.force_stop import FORCED_EXIT_CODE

# These log every message and every tick, some with the body of the message.
VERBOSE_LOGGERS: Final = (
    "celery.bootsteps",
    "celery.pool",
    "celery.worker.strategy",
    "celery.app.trace",
    "celery.beat",
)
# This one logs exits of pool processes.
REQUEST_LOGGER: Final = "celery.worker.request"


class ExitLogFilter(logging.Filter):
    """Drops the exits of processes that the worker ended itself, and tracebacks of the others."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged."""
        text = record.getMessage()
        if f"exitcode {FORCED_EXIT_CODE}" in text:
            return False
        if "WorkerLostError" in text:
            record.exc_info = None
        return True


def configure_celery_loggers() -> None:
    """Set levels and filters; the pool's logger is routed through the root logger's handler."""
    for name in VERBOSE_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    pool_logger = get_logger()
    pool_logger.propagate = True
    pool_logger.setLevel(logging.WARNING)
    for logger in (pool_logger, logging.getLogger(REQUEST_LOGGER)):
        if not any(isinstance(existing, ExitLogFilter) for existing in logger.filters):
            logger.addFilter(ExitLogFilter())
