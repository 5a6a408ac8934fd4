"""Keeps what a command left in `out/` of its workspace as artifacts, when its sandbox is dead."""

from typing import Final

from overnight_worker.run_context import RunContext
from overnight_worker.runners.runner import PreparedRun
from overnight_worker.sandbox.collect import FileCollector, FileTooLarge

FOLDER: Final = "out"
MAX_FILES: Final = 200
# All files of a run are read into memory one after the other.
MAX_BYTES: Final = 64 << 20


def collect(prepared: PreparedRun) -> None:
    """Store the files as artifacts under their paths; what cannot be kept is logged."""
    if prepared.workspace is None:
        return
    files = FileCollector(prepared.workspace, FOLDER, MAX_FILES, MAX_BYTES)
    try:
        for file in files:
            _keep(prepared.context, file.name, b"".join(file.chunks))
    except FileTooLarge as error:
        prepared.context.log("the rest of out/ was not kept", error=str(error))
    for name, reason in files.skipped.items():
        prepared.context.log("a file of out/ was not kept", file=name, reason=reason)


def _keep(context: RunContext, name: str, content: bytes) -> None:
    try:
        context.artifact(name, _text_or_bytes(content))
    except Exception as error:  # noqa: BLE001 - one artifact must not fail the run
        context.log("a file of out/ was not kept", file=name, reason=str(error))


def _text_or_bytes(content: bytes) -> str | bytes:
    """Return text that can be stored as text, else the bytes."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content
    return content if "\0" in text else text
