"""The Celery app, configured from the settings: `celery -A overnight_worker.celery_app` runs it."""

import gc
import os
import sys
import warnings

from celery import Celery, signals
from celery.beat import Service
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning

from overnight_server import telemetry
from overnight_server.dispatch.celery_settings import MAINTENANCE_QUEUE, celery_settings
from overnight_server.fault_points import arm, fault
from overnight_server.settings import current
from overnight_server.telemetry import LogEvent, emit
from overnight_worker import run_output, shutdown
from overnight_worker.beat_schedule import BEAT_SCHEDULE
from overnight_worker.celery_log import configure_celery_loggers
from overnight_worker.claim_registry import CLAIM_REGISTRY
from overnight_worker.dead_pool_processes import DEAD_POOL_PROCESSES
from overnight_worker.pool_guard import POOL_GUARD
from overnight_worker.presence import Presence
from overnight_worker.redis_transport import use_filtered_transport
from overnight_worker.remote_control import restrict_commands
from overnight_worker.schema_step import SchemaStep


def configuration() -> dict[str, object]:
    """Return Celery's settings; Celery calls this when it first needs them."""
    return {
        **celery_settings(current()),
        "beat_schedule": BEAT_SCHEDULE,
        # This scheduler writes no file: the table `sweeps` holds when each sweep last ran.
        "beat_scheduler": "overnight_worker.beat_scheduler:Scheduler",
        "beat_max_loop_interval": 5,
        "worker_consumer": "overnight_worker.consumer:Consumer",
    }


# Celery warns root users of pickled messages, which are never accepted here, and warns at each
# reconnection of a coming default, which the configuration sets explicitly.
for _category in (SecurityWarning, CPendingDeprecationWarning):
    warnings.filterwarnings("ignore", category=_category)

app = Celery("overnight", include=["overnight_worker.execute", "overnight_worker.sweep_tasks"])
app.add_defaults(configuration)
app.steps["worker"].add(Presence)
app.steps["worker"].add(SchemaStep)
restrict_commands()
use_filtered_transport()


@signals.setup_logging.connect
def configure_logging(**_: object) -> None:
    """Write every log line in the form of `telemetry`."""
    settings = current()
    telemetry.configure(settings.log_format, settings.log_level, role_of(sys.argv))
    # Now, because a handler's module may keep the streams that it finds when it is imported.
    run_output.install()
    arm(settings.fault)
    configure_celery_loggers()


@signals.worker_ready.connect
def on_worker_ready(**_: object) -> None:
    """Replace Celery's signal handlers, which it has installed by now."""
    shutdown.shut_down_warm_on_every_signal()
    report_started()


@signals.beat_init.connect
def on_beat_init(sender: Service, **_: object) -> None:
    """Replace beat's signal handlers, which it has installed by now."""
    shutdown.end_beat_on_signals(sender)
    report_started()


def report_started(**_: object) -> None:
    """Log that this process is ready."""
    emit(LogEvent.SERVICE_STARTED, role=role_of(sys.argv), pid=os.getpid())


@signals.before_task_publish.connect
def before_tick(sender: str, **_: object) -> None:
    """Pass the fault point before beat sends a tick."""
    if sender.startswith("sweep."):
        fault("beat.before_tick")


@signals.after_task_publish.connect
def after_tick(sender: str, **_: object) -> None:
    """Pass the fault point after beat sent a tick."""
    if sender.startswith("sweep."):
        fault("beat.after_tick")


@signals.worker_shutting_down.connect
def on_worker_shutting_down(**_: object) -> None:
    """Set the flag that makes the pool processes end their runs."""
    shutdown.begin(current().shutdown_grace)


@signals.worker_process_init.connect
def on_pool_process_start(**_: object) -> None:
    """Prepare a new pool process, and put it under a guard."""
    CLAIM_REGISTRY.register()
    settings = current()
    POOL_GUARD.split(memory_limit_mb=settings.run_memory_mb)
    # Objects from before the fork live on; collecting them again and again would delay runs.
    gc.freeze()
    shutdown.ignore_sigterm()


@signals.worker_before_create_process.connect
def before_pool_process_start(**_: object) -> None:
    """Collect the claims of dead pool processes before a new one reuses a record."""
    DEAD_POOL_PROCESSES.collect()


@signals.worker_shutdown.connect
def on_worker_shutdown(**_: object) -> None:
    """Settle the claims of pool processes that died during the shutdown."""
    DEAD_POOL_PROCESSES.settle(current())


def role_of(arguments: list[str]) -> str:
    """Return the role of the process for its log lines.

    >>> role_of(["celery", "worker", "-Q", "maintenance"])
    'maintenance'
    """
    for role in ("beat", "flower", MAINTENANCE_QUEUE):
        if role in arguments:
            return role
    return "worker"
