"""Celery, set up from our settings: what `celery -A overnight_worker.celery_app` starts."""

import gc
import os
import sys
import warnings

from celery import Celery, signals
from celery.beat import Service
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning
from kombu.transport.redis import Channel

from overnight_server import telemetry
from overnight_server.dispatch.celery_settings import MAINTENANCE_QUEUE, celery_settings
from overnight_server.fault_points import arm, fault
from overnight_server.settings import current
from overnight_server.telemetry import Event, emit
from overnight_worker import shutdown
from overnight_worker.beat_schedule import BEAT_SCHEDULE
from overnight_worker.celery_logging import quieten
from overnight_worker.claim_registry import CLAIM_REGISTRY
from overnight_worker.dead_children import DEAD_CHILDREN
from overnight_worker.presence import Presence


def configuration() -> dict[str, object]:
    """Return Celery's settings, read when first needed."""
    return {
        **celery_settings(current()),
        "beat_schedule": BEAT_SCHEDULE,
        # Keeps nothing on disk; the sweeps' own rows say when each last ran.
        "beat_scheduler": "overnight_worker.beat_scheduler:Scheduler",
        "beat_max_loop_interval": 5,
    }


# It warns root of pickled messages, which we never take, and at each reconnection of a default
# to come, which we have chosen against.
for _category in (SecurityWarning, CPendingDeprecationWarning):
    warnings.filterwarnings("ignore", category=_category)

# What was taken and never begun comes back with its claim. Kombu would put it back by itself and,
# if Redis is away, write it to a file that nobody reads.
Channel.do_restore = False

app = Celery("overnight", include=["overnight_worker.execute", "overnight_worker.sweep_tasks"])
app.add_defaults(configuration)
app.steps["worker"].add(Presence)


@signals.setup_logging.connect
def configure_logging(**_: object) -> None:
    """Write every line in the deployment's form."""
    settings = current()
    telemetry.configure(settings.log_format, settings.log_level, role_of(sys.argv))
    arm(settings.fault)
    quieten()


@signals.worker_ready.connect
def end_in_one_way(**_: object) -> None:
    """Replace Celery's abrupt endings, once it has set up its own."""
    shutdown.always_warm()
    say_started()


@signals.beat_init.connect
def end_when_told(sender: Service, **_: object) -> None:
    """Replace beat's way to end, once it has set up its own."""
    shutdown.end_beat(sender)
    say_started()


def say_started(**_: object) -> None:
    """Report that this process is ready."""
    emit(Event.SERVICE_STARTED, role=role_of(sys.argv), pid=os.getpid())


@signals.before_task_publish.connect
def before_tick(sender: str, **_: object) -> None:
    """Mark the moment before beat sends a tick."""
    if sender.startswith("upkeep."):
        fault("beat.before_tick")


@signals.after_task_publish.connect
def after_tick(sender: str, **_: object) -> None:
    """Mark the moment after beat sent a tick."""
    if sender.startswith("upkeep."):
        fault("beat.after_tick")


@signals.worker_shutting_down.connect
def begin_shutdown(**_: object) -> None:
    """Tell the children that the worker goes."""
    shutdown.begin(current().shutdown_grace)


@signals.worker_process_init.connect
def become_a_child(**_: object) -> None:
    """Settle in as a child of the pool."""
    # What was there before the fork stays; to look through it again and again delays runs.
    gc.freeze()
    shutdown.outlive_the_group()
    CLAIM_REGISTRY.open()


@signals.worker_before_create_process.connect
def clear_the_place(**_: object) -> None:
    """Take away what the last one left where a child is about to begin."""
    DEAD_CHILDREN.note()


@signals.worker_shutdown.connect
def tell_the_last_deaths(**_: object) -> None:
    """Tell of the children that did not outlive the shutdown."""
    DEAD_CHILDREN.tell(current())


def role_of(arguments: list[str]) -> str:
    """Name the process for its log lines.

    >>> role_of(["celery", "worker", "-Q", "maintenance"])
    'maintenance'
    """
    for role in ("beat", "flower", MAINTENANCE_QUEUE):
        if role in arguments:
            return role
    return "worker"
