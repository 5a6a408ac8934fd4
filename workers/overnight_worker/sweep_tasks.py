"""The sweeps under the names by which beat calls them."""

from overnight_server.maintenance.sweeps import SWEEPS, run_sweep
from overnight_server.telemetry import Event, emit
from overnight_worker.celery_app import app
from overnight_worker.resources import worker_resources


def sweep(name: str) -> None:
    """Make one pass of a sweep; one that fails is repeated by its next tick, not by Celery.

    What it touched may be work or room for work, so the dispatcher should look.
    """
    own = worker_resources()
    try:
        if run_sweep(own.db, own.settings, name):
            own.waker.wake()
    except Exception as error:  # noqa: BLE001 - whatever it was, the next tick tries again
        emit(Event.SWEEP_FAILED, sweep=name, error=error)


def _give_name(name: str) -> None:
    def tick() -> None:
        sweep(name)

    app.task(name=f"upkeep.{name}")(tick)


for _name in SWEEPS:
    _give_name(_name)
