"""Which runner carries out a run, and which runners this worker has."""

from contextlib import suppress

from overnight.handlers.registry import registered
from overnight_server.domain.claims import Run
from overnight_server.settings import Settings
from overnight_worker.runners.command import CommandRunner
from overnight_worker.runners.python import PythonRunner
from overnight_worker.runners.runner import Runner
from overnight_worker.sandbox.probe import choose_sandbox_kind
from overnight_worker.sandbox.spec import NoSandbox


class Runners:
    """The runners of this worker; the main process finds out, and its children inherit it."""

    def __init__(self) -> None:
        self._command: CommandRunner | None = None

    def find(self, settings: Settings) -> None:
        """Find out how this machine can run commands; without a way there are no commands."""
        with suppress(NoSandbox):
            self._command = CommandRunner(choose_sandbox_kind(settings.sandbox))

    @property
    def has_command(self) -> bool:
        """Whether this worker can run commands."""
        return self._command is not None

    def choose(self, run: Run) -> Runner | None:
        """Return the runner of a run; None if this worker has none, or no handler of its type."""
        if run.execution is not None:
            return self._command
        handler = registered().get(run.type)
        return None if handler is None else PythonRunner(handler)


RUNNERS = Runners()


def runner_for(run: Run) -> Runner | None:
    """Return the runner of a run; None if this worker cannot carry it out."""
    return RUNNERS.choose(run)
