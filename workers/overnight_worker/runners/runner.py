"""What a runner is: it begins a run and can end it. `execute` does everything else.

Claim, lease, heartbeats, stops, validation and settling are the same for every runner. A runner
reports over the `RunConnection` of its run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from overnight_server.domain.claims import Run
from overnight_worker.git_workspace import Clone
from overnight_worker.input_files import InputFiles
from overnight_worker.run_context import RunContext
from overnight_worker.runners.run_connection import RunConnection


@dataclass(frozen=True)
class PreparedRun:
    """One run with what was prepared for it: its secrets are read, its workspace exists.

    `grace_seconds` is the time that it has to end when it is asked to, `clone` the git repository
    in its workspace, `input_files` what a command reads besides its prompt. `pushes` says whether
    its branch is brought into the repository.
    """

    run: Run
    context: RunContext
    workspace: Path | None = None
    env: dict[str, str] | None = None
    grace_seconds: float = 0.0
    clone: Clone | None = None
    input_files: InputFiles | None = None
    pushes: bool = False


class Runner(Protocol):
    """Carries out runs of one kind."""

    def spawn(self, prepared: PreparedRun, connection: RunConnection) -> str:
        """Begin a run; return its external id, which `connection.note_id` recorded before.

        The run goes on after this returns, and calls `connection.end` when it has ended. What this
        raises is how the run ended.
        """

    def terminate(self, external_id: str, grace: float) -> None:
        """Ask a run to end, end it by force after `grace` seconds, and return when it has ended.

        A run that has ended, or that this runner does not know, is left alone.
        """
