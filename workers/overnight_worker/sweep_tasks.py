"""The sweeps as Celery tasks, under the names that beat sends."""

from overnight_server.maintenance.sweeps import SWEEPS, run_sweep
from overnight_server.telemetry import LogEvent, emit
from overnight_worker.celery_app import app
from overnight_worker.resources import worker_resources


def sweep(name: str) -> None:
    """Run one pass of a sweep; a pass that fails is logged, and its next tick repeats it."""
    resources = worker_resources()
    try:
        run_sweep(resources.db, resources.settings, name)
    except Exception as error:  # noqa: BLE001 - whatever it was, the next tick tries again
        emit(LogEvent.SWEEP_FAILED, sweep=name, error=error)


def _register(name: str) -> None:
    def tick() -> None:
        sweep(name)

    app.task(name=f"upkeep.{name}")(tick)


for _name in SWEEPS:
    _register(_name)
