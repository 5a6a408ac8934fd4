"""The sweeps as Celery tasks, under the names that beat sends.

The maintenance process runs urgent sweeps in its main thread, one after the other. All others (the
inbox, bulk operations, triggers, the audit) can take long and run in a second thread, so that lost
runs and due retries never wait for them.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock

from overnight_server.maintenance.sweeps import SWEEPS, run_sweep
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.telemetry import LogEvent, emit
from overnight_worker.celery_app import app
from overnight_worker.resources import worker_resources
from overnight_worker.shutdown import SHUTDOWN_FLAG


class SweepRunner:
    """Runs the sweeps of one process; a pass that fails is logged, and its next tick repeats it."""

    def __init__(self, db: Db, settings: Settings) -> None:
        self._db = db
        self._settings = settings
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sweeps")
        # The sweeps that wait for the thread: a second tick of one of them is dropped.
        self._waiting: set[str] = set()
        self._changing = Lock()

    def tick(self, name: str) -> None:
        """Run an urgent sweep now; queue any other sweep for the second thread."""
        if SWEEPS[name].is_urgent:
            self._run(name)
            return
        with self._changing:
            if name in self._waiting:
                return
            self._waiting.add(name)
        self._thread.submit(self._run_waiting, name)

    def _run_waiting(self, name: str) -> None:
        with self._changing:
            self._waiting.discard(name)
        # At its end the interpreter waits until this thread has nothing left to run.
        if not SHUTDOWN_FLAG.is_set:
            self._run(name)

    def _run(self, name: str) -> None:
        try:
            run_sweep(self._db, self._settings, name)
        except Exception as error:  # noqa: BLE001 - whatever it was, the next tick tries again
            emit(LogEvent.SWEEP_FAILED, sweep=name, error=error)


@cache
def sweep_runner() -> SweepRunner:
    """Return the runner of this process."""
    resources = worker_resources()
    return SweepRunner(resources.db, resources.settings)


def _register(name: str) -> None:
    def tick() -> None:
        sweep_runner().tick(name)

    app.task(name=f"sweep.{name}")(tick)


for _name in SWEEPS:
    _register(_name)
