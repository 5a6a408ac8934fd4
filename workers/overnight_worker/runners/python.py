"""Runs a registered Python handler in the worker's own process."""

from overnight.handlers.invoke import invoke
from overnight.handlers.registry import Handler
from overnight_worker.runners.run_connection import RunConnection
from overnight_worker.runners.runner import PreparedRun


class PythonRunner:
    """Calls the handler of one type, in the thread that spawns the run.

    So `spawn` returns when the run has ended, and its process is the run's: nothing is noted. A
    handler ends when its context says so; `force_stop` ends the process of one that does not.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def spawn(self, prepared: PreparedRun, connection: RunConnection) -> str:
        """Call the handler and report its output; its exceptions are not caught."""
        connection.end(invoke(self._handler, prepared.context))
        return prepared.context.idempotency_key

    def terminate(self, external_id: str, grace: float) -> None:
        """Do nothing: a handler has ended when its run is known."""
