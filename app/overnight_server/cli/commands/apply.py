"""`overnight apply`: bring the branch that a task made into your own git repository."""

import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output, short_ids
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight import Client

BUNDLE_NAME = "branch.bundle"
BRANCH_PREFIX = "overnight/"
CONFLICT = 1


def apply(
    task: options.TaskRef,
    *,
    repo: Annotated[
        Path, typer.Option(metavar="PATH", help="Git repository that gets the branch.")
    ] = Path(),
    push: Annotated[
        bool, typer.Option("--push", help="Push the branch to --remote as well.")
    ] = False,
    remote: Annotated[str, typer.Option(help="Remote that --push uses.")] = "origin",
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Bring the branch of a finished task into a git repository.

    The branch is named overnight/TASK. Nothing is checked out or merged; files that would conflict
    with the current branch are listed. With --json, `conflicts` is null if that cannot be told.
    """
    with connection.client(url, api_key_file) as client:
        task_id = short_ids.resolve(client, task)
        bundle = _bundle_of(client, task_id)
    branch = f"{BRANCH_PREFIX}{task_id}"
    _fetch(repo, bundle, branch)
    conflicts = _conflicts(repo, branch)
    if push:
        _git(repo, "push", "--quiet", remote, f"refs/heads/{branch}")
    if as_json:
        output.document({"branch": branch, "conflicts": conflicts, "pushed": push})
        return
    output.line(branch)
    if conflicts is None:
        output.note(
            "Whether it conflicts with the current branch could not be checked;"
            f" `git merge {branch}` tells."
        )
    elif conflicts:
        output.note(f"It conflicts with the current branch in: {', '.join(conflicts)}")
    else:
        output.note(f"Merge it with `git merge {branch}`.")


def _bundle_of(client: "Client", task_id: str) -> bytes:
    """Return the branch of a task; raise CommandFailure if it has none."""
    for artifact in client.tasks.artifacts(task_id):
        if artifact.name == BUNDLE_NAME:
            return client.tasks.artifact(artifact.id)
    shown = client.tasks.get(task_id)
    reason = "it changed nothing" if shown.state == "completed" else f"it is {shown.state}"
    raise CommandFailure(f"Task {task_id} has no branch: {reason}.", code=Code.NOT_COMPLETED)


def _fetch(repo: Path, bundle: bytes, branch: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / BUNDLE_NAME
        file.write_bytes(bundle)
        # A tag of the same name is another ref, and nothing but the branch is fetched.
        refs = f"+refs/heads/{branch}:refs/heads/{branch}"
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
        _git(repo, "fetch", *options, str(file), refs)


def _conflicts(repo: Path, branch: str) -> list[str] | None:
    """Return the files that a merge of the branch into the current one would have to resolve.

    Return None if git cannot tell: it is older than 2.38, or the repository has no commit yet.
    """
    words = ("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", "HEAD")
    merged = _run(repo, *words, f"refs/heads/{branch}")
    if merged.returncode == 0:
        return []
    # Git also ends with this code, without a tree, if there is no commit to merge with.
    if merged.returncode != CONFLICT or not merged.stdout:
        return None
    # The first field is the tree; the list ends with an empty field.
    return [name for name in merged.stdout.split("\0")[1:] if name]


def _git(repo: Path, *words: str) -> str:
    """Run git in a repository and return its output; raise CommandFailure if it fails."""
    done = _run(repo, *words)
    if done.returncode != 0:
        hint = "Apply it in a clone that has the commit from which the task started."
        raise CommandFailure(f"git {words[0]} failed: {done.stderr.strip()}", hint=hint)
    return done.stdout


def _run(repo: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    # The commits are an agent's work: git refuses those that are malformed on purpose.
    checked = ("-c", "fetch.fsckObjects=true")
    try:
        return subprocess.run(
            ["git", "-C", str(repo), *checked, *words],
            capture_output=True,
            text=True,
            # The name of a file may be no text.
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise CommandFailure("git is not installed.", hint="Install git.") from None
