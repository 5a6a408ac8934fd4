"""Celery, set up from our settings: what `celery -A workers.celery_app` starts."""

import logging
import sys
import warnings
from typing import Any, Final

from celery import Celery, signals
from celery.exceptions import SecurityWarning

from app import telemetry
from app.dispatch.celery_settings import MAINTENANCE_QUEUE, celery_settings
from app.settings import current
from beat_schedule import BEAT_SCHEDULE
from workers import shutdown
from workers.presence import Presence

# Celery's own words about every message, some of them with its body: our events say it better.
CHATTY: Final = ("celery.bootsteps", "celery.pool", "celery.worker.strategy", "celery.app.trace")


def configuration() -> dict[str, object]:
    """Return Celery's settings, read when first needed."""
    return {
        **celery_settings(current()),
        "beat_schedule": BEAT_SCHEDULE,
        # Keeps nothing on disk; the sweeps' own rows say when each last ran.
        "beat_scheduler": "celery.beat:Scheduler",
        "beat_max_loop_interval": 5,
    }


# It warns root of pickled messages, which we never take.
warnings.filterwarnings("ignore", category=SecurityWarning)

app = Celery("overnight", include=["workers.execute", "workers.upkeep"])
app.add_defaults(configuration)
app.steps["worker"].add(Presence)


@signals.setup_logging.connect
def speak_as_the_house(**_: Any) -> None:  # noqa: ANN401 - Celery's signature
    """Write every line in the house's form."""
    settings = current()
    telemetry.configure(settings.log_format, settings.log_level, role_of(sys.argv))
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


@signals.worker_ready.connect
def end_in_one_way(**_: Any) -> None:  # noqa: ANN401 - Celery's signature
    """Replace Celery's abrupt endings, once it has set up its own."""
    shutdown.always_warm()


@signals.worker_shutting_down.connect
def begin_shutdown(**_: Any) -> None:  # noqa: ANN401 - Celery's signature
    """Tell the children that the worker goes."""
    shutdown.begin(current().shutdown_grace)


@signals.worker_process_init.connect
def become_a_child(**_: Any) -> None:  # noqa: ANN401 - Celery's signature
    """Settle in as a child of the pool."""
    shutdown.leave_signals_to_main()


def role_of(arguments: list[str]) -> str:
    """Name the process for its log lines.

    >>> role_of(["celery", "worker", "-Q", "maintenance"])
    'maintenance'
    """
    for role in ("beat", "flower", MAINTENANCE_QUEUE):
        if role in arguments:
            return role
    return "worker"
