"""Gives a command its task's payload and inputs: JSON files beside its workspace, read-only.

They are outside of the workspace, so that no agent commits them to a repository.
"""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from overnight_worker.run_context import RunContext
from overnight_worker.sandbox import ReadOnlyMount, SandboxKind
from overnight_worker.sandbox.workspace import let_sandbox_read

PLACE: Final = "/overnight"
# The variable that names each file for the command.
VARIABLES: Final = {
    "payload.json": "OVERNIGHT_PAYLOAD_FILE",
    "inputs.json": "OVERNIGHT_INPUTS_FILE",
}


@dataclass(frozen=True)
class InputFiles:
    """The files of one run, in a directory of the host."""

    directory: Path

    def mounts(self) -> tuple[ReadOnlyMount, ...]:
        """Return where a sandbox has the files."""
        return tuple(ReadOnlyMount(self.directory / name, f"{PLACE}/{name}") for name in VARIABLES)

    def variables(self, sandbox_kind: SandboxKind) -> dict[str, str]:
        """Return the variables that name the files; without a sandbox these are the host's."""
        place = str(self.directory) if sandbox_kind is SandboxKind.NONE else PLACE
        return {variable: f"{place}/{name}" for name, variable in VARIABLES.items()}


def write_input_files(workspace: Path, context: RunContext) -> InputFiles:
    """Write payload and inputs of a run beside its workspace; only its sandbox may read them."""
    files = InputFiles(workspace.parent)
    for name, value in (("payload.json", context.payload), ("inputs.json", context.inputs)):
        path = files.directory / name
        path.touch(mode=0o600)
        path.write_text(json.dumps(value, default=_in_base_64))
        let_sandbox_read(path, workspace)
    return files


def _in_base_64(value: Any) -> str:  # noqa: ANN401 - what JSON has no type for
    """Return the content of an artifact of bytes as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} is no type of JSON")
