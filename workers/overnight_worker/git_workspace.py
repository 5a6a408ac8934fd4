"""Workspaces with a git repository: a clone on a branch of its own, and what a command changed.

The user's checkout is only read: its commits are fetched into a bundle beside the workspace. The
clone is made in a sandbox, and so is everything that git does after the command: the command may
have changed the configuration, hooks and attributes of the clone, which git then executes.
"""

import errno
import json
import os
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from overnight.handlers.control_exceptions import Fail
from overnight_worker.program_in_sandbox import run_program
from overnight_worker.run_context import RunContext
from overnight_worker.sandbox import (
    NetworkPolicy,
    ReadOnlyMount,
    SandboxKind,
    SandboxLimits,
    SandboxSpec,
)
from overnight_worker.sandbox.file_collector import open_beneath
from overnight_worker.sandbox.workspace import let_sandbox_read
from overnight_worker.source_repository import (
    BASE,
    GIT_ENV,
    GIT_SECONDS,
    check_allowed,
    write_bundle,
)

BRANCH_PREFIX: Final = "overnight/"
UNREADABLE: Final = "the changes cannot be read from the workspace"
BUNDLE: Final = "/overnight/source.bundle"
MAX_FILE_BYTES: Final = 64 << 20
# How many changed files the output of a task names, and how long these names may be together: an
# output has a largest size.
MAX_FILES_NAMED: Final = 10_000
MAX_NAMES_BYTES: Final = 400_000
# Git writes what a command added once more as objects, as a bundle and as a patch.
COMMIT_SHARE: Final = 4
# Arguments: the source, the branch, the ref (empty for the repository's own). Prints the commit.
CLONE_SCRIPT: Final = """
set -e
git clone --quiet --no-checkout "$1" .
start=HEAD
if [ -n "$3" ]; then
    start=$(git rev-parse --quiet --verify "origin/$3^{commit}" ||
            git rev-parse --quiet --verify "$3^{commit}") || {
        echo "it has no branch, tag or commit $3" >&2
        exit 1
    }
fi
git checkout --quiet -B "$2" "$start"
git remote remove origin
git config user.name Overnight
git config user.email overnight@localhost
git rev-parse HEAD
"""
# Arguments: the first commit, the branch, the message. What it writes are files in `.git`.
COMMIT_SCRIPT: Final = """
set -e
rm -rf .git/index.lock .git/overnight.bundle .git/overnight.patch .git/overnight.numstat
set -- "$1" "$2" "$3" -c core.hooksPath=/dev/null -c commit.gpgsign=false
base=$1; branch=$2; message=$3; shift 3
git "$@" add --all
git "$@" diff --cached --quiet ||
    git "$@" commit --quiet --cleanup=whitespace --message "$message"
git "$@" checkout --quiet -B "$branch"
branch=refs/heads/$branch
git merge-base --is-ancestor "$base" "$branch" || {
    echo "the branch has lost the commit that it began with" >&2
    exit 1
}
if [ "$(git rev-parse "$branch")" != "$base" ]; then
    git bundle create --quiet .git/overnight.bundle "$branch" "^$base"
    git format-patch --quiet --stdout "$base..$branch" > .git/overnight.patch
    git diff --numstat -z "$base" "$branch" > .git/overnight.numstat
fi
"""


@dataclass(frozen=True)
class Repository:
    """A repository that a task works on, and the branch of the task in it.

    `allowed` has what the operator allows on this worker.
    """

    source: str
    ref: str
    branch: str
    allowed: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of a URL, with its port if it has one; none for a path of this machine."""
        url = urlsplit(self.source)
        if "://" not in self.source or url.hostname is None:
            return ()
        return (url.hostname if url.port is None else f"{url.hostname}:{url.port}",)


@dataclass(frozen=True)
class Clone:
    """A repository in a workspace, and the commit that its branch starts at.

    `limits` are those of the command: git executes what the command has configured.
    """

    repository: Repository
    base: str
    sandbox_kind: SandboxKind
    limits: SandboxLimits = field(default_factory=SandboxLimits)


@dataclass(frozen=True)
class Changes:
    """What a command changed in its clone: files, lines, and the commits as git writes them.

    `files` has the first names of `count` files.
    """

    files: tuple[str, ...] = ()
    count: int = 0
    insertions: int = 0
    deletions: int = 0
    bundle: bytes = b""
    patch: bytes = b""


def clone(
    repository: Repository,
    workspace: Path,
    sandbox_kind: SandboxKind,
    limits: SandboxLimits,
    context: RunContext,
) -> Clone:
    """Clone a repository into an empty workspace, on the branch of the task.

    Raise Fail if the repository is not allowed, if it or the ref cannot be read, or if the
    workspace is too small. A request to stop the run ends this with Stopped.
    """
    check_allowed(repository.source, repository.allowed)
    mounts: tuple[ReadOnlyMount, ...] = ()
    source, ref, hosts = repository.source, repository.ref, repository.hosts
    if not hosts:
        bundle = workspace.parent / "source.bundle"
        path = Path(source).resolve()
        write_bundle(path, ref, bundle, allowed=repository.allowed, context=context)
        let_sandbox_read(bundle, workspace)
        mounts = (ReadOnlyMount(bundle, BUNDLE),)
        source, ref = BUNDLE, BASE.removeprefix("refs/heads/")
    spec = SandboxSpec(
        argv=("sh", "-c", CLONE_SCRIPT, "sh", source, repository.branch, ref),
        workspace=workspace,
        env=GIT_ENV,
        network=NetworkPolicy(hosts),
        read_only_mounts=mounts,
        limits=limits,
    )
    output = _run(spec, sandbox_kind, context, what=f"repo: {repository.source} cannot be cloned")
    return Clone(repository, output.decode().strip(), sandbox_kind, limits)


def commit_changes(clone: Clone, workspace: Path, context: RunContext) -> Changes:
    """Commit what a command left uncommitted, and return what it changed in its clone.

    Raise Fail if its clone is no longer usable.
    """
    room = COMMIT_SHARE * clone.limits.workspace_mb
    spec = SandboxSpec(
        argv=("sh", "-c", COMMIT_SCRIPT, "sh", clone.base, clone.repository.branch, context.title),
        workspace=workspace,
        # Above the workspace there is no repository.
        env={**GIT_ENV, "GIT_CEILING_DIRECTORIES": "/"},
        limits=replace(clone.limits, workspace_mb=room, file_mb=room),
    )
    _run(spec, clone.sandbox_kind, context, what=UNREADABLE)
    try:
        numstat = _read(workspace, ".git/overnight.numstat")
        if not numstat:
            return Changes()
        bundle = _read(workspace, ".git/overnight.bundle", is_whole=True)
        patch = _read(workspace, ".git/overnight.patch", is_whole=True)
    except OSError as error:
        raise Fail(f"{UNREADABLE}: {error.filename}: {error.strerror}") from error
    return replace(parse_numstat(numstat), bundle=bundle, patch=patch)


def parse_numstat(output: bytes) -> Changes:
    """Return the changed files and lines that `git diff --numstat -z` has counted.

    A renamed file has two names, each a field of its own; binary files have no numbers.
    """
    fields = output.decode(errors="replace").split("\0")
    files: list[str] = []
    count = insertions = deletions = position = 0
    names_left = MAX_NAMES_BYTES
    while position < len(fields):
        inserted, _, rest = fields[position].partition("\t")
        deleted, _, name = rest.partition("\t")
        position += 1
        if not rest:
            continue
        if not name and position + 1 < len(fields):
            name = fields[position + 1]
            position += 2
        names_left -= len(json.dumps(name, ensure_ascii=False).encode())
        if len(files) < MAX_FILES_NAMED and names_left >= 0:
            files.append(name)
        count += 1
        insertions += int(inserted) if inserted.isdecimal() else 0
        deletions += int(deleted) if deleted.isdecimal() else 0
    return Changes(tuple(files), count, insertions, deletions)


def _invalid(message: str) -> Fail:
    return Fail(message, error_class="invalid_input")


def _run(spec: SandboxSpec, sandbox_kind: SandboxKind, context: RunContext, *, what: str) -> bytes:
    """Run git in a sandbox; return its output, or raise Fail with its last error line.

    A request to stop the run ends it: then this raises Stopped.
    """
    program = run_program(spec, sandbox_kind, context, seconds=GIT_SECONDS)
    if not program.has_succeeded:
        reason = "git takes too long" if program.end is None else program.last_error
        raise _invalid(f"{what}: {reason or program.end}")
    return program.stdout


def _read(workspace: Path, name: str, *, is_whole: bool = False) -> bytes:
    """Return the beginning of a file in a dead sandbox's workspace; empty if there is none.

    With `is_whole` a file that is too large is empty too. Raise OSError for what is no file.
    """
    top = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        descriptor = open_beneath(top, name)
    except FileNotFoundError:
        return b""
    finally:
        os.close(top)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", name)
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    return b"" if is_whole and len(content) > MAX_FILE_BYTES else content[:MAX_FILE_BYTES]
