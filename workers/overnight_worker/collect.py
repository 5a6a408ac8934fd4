"""Keeps what a command left in its workspace as artifacts, when its sandbox is dead."""

from pathlib import Path
from typing import Final

from overnight_worker.git_workspace import Changes, Clone, keep
from overnight_worker.push_branch import push_branch
from overnight_worker.run_context import RunContext
from overnight_worker.runners.runner import PreparedRun
from overnight_worker.sandbox.collect import FileCollector, FileTooLarge

FOLDER: Final = "out"
BUNDLE_NAME: Final = "branch.bundle"
PATCH_NAME: Final = "changes.patch"
MAX_FILES: Final = 200
# All files of a run are read into memory one after the other.
MAX_BYTES: Final = 64 << 20


def collect(prepared: PreparedRun, output: object) -> object:
    """Keep what a finished command left in its workspace; return the output with its changes.

    With a repository these are the commits of its branch, else the files in `out/`.
    """
    if prepared.workspace is None:
        return output
    if prepared.clone is not None:
        fields = output if isinstance(output, dict) else {"result": output}
        return {**fields, **_keep_branch(prepared, prepared.clone, prepared.workspace)}
    _keep_files(prepared.context, prepared.workspace)
    return output


def _keep_branch(prepared: PreparedRun, clone: Clone, workspace: Path) -> dict[str, object]:
    """Store the branch as a bundle and as a patch; return what the output says about it."""
    changes = keep(clone, workspace, prepared.context)
    for name, content in ((BUNDLE_NAME, changes.bundle), (PATCH_NAME, changes.patch)):
        if content:
            prepared.context.artifact(name, content)
    fields = _about(changes)
    if changes.bundle:
        fields["branch"] = clone.repository.branch
        if prepared.pushes:
            fields["pushed"] = push_branch(clone, changes.bundle, workspace, prepared.context)
    return fields


def _about(changes: Changes) -> dict[str, object]:
    """Return the changed files and the size of the change."""
    diff = {
        "files": len(changes.files),
        "insertions": changes.insertions,
        "deletions": changes.deletions,
    }
    return {"files_changed": list(changes.files), "diff": diff}


def _keep_files(context: RunContext, workspace: Path) -> None:
    """Store the files of `out/` as artifacts under their paths; what cannot be kept is logged."""
    files = FileCollector(workspace, FOLDER, MAX_FILES, MAX_BYTES)
    try:
        for file in files:
            _keep(context, file.name, b"".join(file.chunks))
    except FileTooLarge as error:
        context.log("the rest of out/ was not kept", error=str(error))
    for name, reason in files.skipped.items():
        context.log("a file of out/ was not kept", file=name, reason=reason)
    if files.more_skipped:
        context.log("more of out/ was not kept", entries=files.more_skipped)


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
