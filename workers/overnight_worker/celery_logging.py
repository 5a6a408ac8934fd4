"""Keeping Celery's own log to what our events do not say better."""

import logging
from typing import Final

from billiard.util import get_logger

from overnight_worker.lease import ENDED_BY_FORCE

# Words about every message and every tick, some of them with the message's body.
CHATTY: Final = (
    "celery.bootsteps",
    "celery.pool",
    "celery.worker.strategy",
    "celery.app.trace",
    "celery.beat",
)
DEATHS: Final = "celery.worker.request"


class OnlyNews(logging.Filter):
    """Drops children's deaths that we brought about, and the pool's traceback of the others."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is worth a line."""
        text = record.getMessage()
        if f"exitcode {ENDED_BY_FORCE}" in text:
            return False
        if "WorkerLostError" in text:
            record.exc_info = None
        return True


def quieten() -> None:
    """Set Celery's loggers up; the pool's own would write past the deployment's form of line."""
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    pool = get_logger()
    pool.propagate = True
    pool.setLevel(logging.WARNING)
    for logger in (pool, logging.getLogger(DEATHS)):
        # The same one twice has no effect, a second of its kind would.
        if not any(isinstance(known, OnlyNews) for known in logger.filters):
            logger.addFilter(OnlyNews())
