"""Keeps what a command left in its workspace as artifacts, when its sandbox is dead."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from overnight.errors import InvalidRequest, StorageLimitReached
from overnight.handlers.context import Context
from overnight.handlers.control_exceptions import Fail
from overnight_worker.git_workspace import MAX_FILE_BYTES, Changes, Clone, commit_changes
from overnight_worker.push_branch import push_branch
from overnight_worker.run_context import RunContext
from overnight_worker.runners.runner import PreparedRun
from overnight_worker.sandbox.file_collector import FileCollector, FileTooLarge

FOLDER: Final = "out"
BUNDLE_NAME: Final = "branch.bundle"
PATCH_NAME: Final = "changes.patch"
MAX_FILES: Final = 200
# All files of a run are read into memory one after the other.
MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Collected:
    """The output of a run, with what was found in its workspace; `bundle` has its branch."""

    output: object
    bundle: bytes = b""


def collect(prepared: PreparedRun, output: object) -> Collected:
    """Keep what a finished command left in its workspace; return the output with its changes.

    With a repository these are the commits of its branch, else the files in `out/`.
    """
    if prepared.workspace is None:
        return Collected(output)
    if prepared.clone is not None:
        return _keep_branch(prepared, prepared.clone, prepared.workspace, output)
    _keep_files(prepared.context, prepared.workspace)
    return Collected(output)


def push(prepared: PreparedRun, collected: Collected) -> object:
    """Bring the branch of a run into its repository, if its profile says so; return the output."""
    clone, workspace, bundle = prepared.clone, prepared.workspace, collected.bundle
    fields = collected.output
    if not (prepared.pushes and bundle and clone and workspace and isinstance(fields, dict)):
        return fields
    return {**fields, "pushed": push_branch(clone, bundle, workspace, prepared.context)}


def _keep_branch(prepared: PreparedRun, clone: Clone, workspace: Path, output: object) -> Collected:
    """Commit and store what a command changed; return its output with the branch and the changes.

    An output that is no object becomes the field `result`.
    """
    changes = commit_changes(clone, workspace, prepared.context)
    store_changes(prepared.context, changes)
    fields = {
        **(output if isinstance(output, dict) else {"result": output}),
        **about_changes(changes),
    }
    if changes.bundle:
        fields["branch"] = clone.repository.branch
    return Collected(fields, changes.bundle)


def store_changes(context: Context, changes: Changes) -> None:
    """Store the commits of a branch as a bundle, and as a patch, which is only logged if too large.

    A run whose work is lost must not complete: raise Fail for commits that are too large or that
    the user's limits do not allow, because another attempt would make them again, and for a bundle
    what else `context.artifact` raises.
    """
    if not changes.count:
        return
    if not changes.bundle:
        raise Fail(
            f"the commits of the run have more than {MAX_FILE_BYTES >> 20} MB, so that they cannot"
            " be stored; let the command write large files elsewhere, or list them in .gitignore"
        )
    try:
        context.artifact(BUNDLE_NAME, changes.bundle)
    except (InvalidRequest, StorageLimitReached) as refusal:
        raise Fail(f"the commits of the run cannot be stored: {refusal}") from refusal
    if changes.patch:
        _keep(context, PATCH_NAME, changes.patch)
    else:
        context.log("a file was not kept", file=PATCH_NAME, reason="it is too large")


def about_changes(changes: Changes) -> dict[str, object]:
    """Return the changed files and the size of the change; of very many files, the first."""
    diff = {
        "files": changes.count,
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
        context.log("a file was not kept", file=name, reason=reason)
    if files.more_skipped:
        context.log("more of out/ was not kept", entries=files.more_skipped)


def _keep(context: Context, name: str, content: bytes) -> None:
    try:
        context.artifact(name, _text_or_bytes(content))
    except Exception as error:  # noqa: BLE001 - one artifact must not fail the run
        context.log("a file was not kept", file=name, reason=str(error))


def _text_or_bytes(content: bytes) -> str | bytes:
    """Return text that can be stored as text, else the bytes."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content
    return content if "\0" in text else text
