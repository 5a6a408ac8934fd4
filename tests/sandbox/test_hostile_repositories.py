"""What a repository or a command's clone may hold, and what git then makes of it.

Git runs outside of a sandbox on the repository of a task, and in a sandbox on its clone.
"""

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overnight.handlers.control_exceptions import Fail, Stopped
from overnight.handlers.outcome import storable
from overnight_worker import git_workspace, source_repository
from overnight_worker.collect import about_changes
from overnight_worker.git_workspace import (
    COMMIT_SHARE,
    MAX_FILES_NAMED,
    Changes,
    Clone,
    Repository,
    clone,
    commit_changes,
)
from overnight_worker.program_in_sandbox import run_program
from overnight_worker.run_context import RunContext
from overnight_worker.run_directory import workspace
from overnight_worker.sandbox import SandboxKind, SandboxLimits, SandboxSpec, proxy
from tests.support.git_server import serve_repositories
from tests.support.open_directory import open_directory
from tests.support.sample_run import RUN

SECONDS = 60
BRANCH = "overnight/task_1"
LIMITS = SandboxLimits(workspace_mb=64)
# An ordinary user that no account of the machine has.
OWNER = 60_098


def git(repo: Path, *words: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    return subprocess.run(
        ["git", "-C", str(repo), *identity, *words], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "--quiet", "--initial-branch", "main")
    (repo / "app.txt").write_text("one\n")
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "-m", "first")
    return repo


@pytest.fixture
def context() -> RunContext:
    return RunContext(RUN, deadline=time.monotonic() + SECONDS)


@pytest.fixture
def cloned(repo: Path, context: RunContext) -> Iterator[tuple[Clone, Path]]:
    repository = Repository(str(repo), "", BRANCH, (str(repo),))
    with workspace() as directory:
        yield clone(repository, directory, SandboxKind.OWN, LIMITS, context), directory


def changes_by(script: str, cloned: tuple[Clone, Path], context: RunContext) -> Changes:
    """Let a command work in a clone, and return what git then says about it."""
    made, directory = cloned
    spec = SandboxSpec(argv=("sh", "-ec", script), workspace=directory, limits=LIMITS)
    program = run_program(spec, made.sandbox_kind, context, seconds=SECONDS)
    assert program.has_succeeded, program
    return commit_changes(made, directory, context)


def test_a_tag_with_the_name_of_the_branch_hides_no_commit(
    cloned: tuple[Clone, Path], context: RunContext, repo: Path, tmp_path: Path
) -> None:
    changes = changes_by(f"git tag {BRANCH}; echo two >> app.txt", cloned, context)

    assert changes.files == ("app.txt",)
    (tmp_path / "bundle").write_bytes(changes.bundle)
    refs = f"refs/heads/{BRANCH}"
    git(repo, "fetch", "--quiet", str(tmp_path / "bundle"), f"{refs}:{refs}")
    assert git(repo, "show", f"{refs}:app.txt") == "one\ntwo\n"
    assert b"+two" in changes.patch


def test_very_many_changed_files_are_counted_and_some_are_named(
    cloned: tuple[Clone, Path], context: RunContext
) -> None:
    number = MAX_FILES_NAMED + 2000
    script = f"mkdir made; cd made; seq {number} | sed 's/^/{'f' * 20}/' | xargs touch"

    changes = changes_by(script, cloned, context)

    assert (changes.count, len(changes.files)) == (number, MAX_FILES_NAMED)
    output = {**about_changes(changes), "text": "x" * 100_000, "summary": "x" * 100_000}
    assert storable(output)["diff"]["files"] == number


def test_git_gets_no_more_room_than_the_command_whose_configuration_it_executes(
    cloned: tuple[Clone, Path], context: RunContext
) -> None:
    most = COMMIT_SHARE * LIMITS.workspace_mb << 20
    script = f"git config core.fsmonitor 'head -c {most + (64 << 20)} /dev/zero > big; false'"

    with pytest.raises(Fail, match="the changes cannot be read"):
        changes_by(script, cloned, context)

    assert (cloned[1] / "big").stat().st_size <= most


@pytest.mark.parametrize(
    "script",
    [
        "mkfifo .git/overnight.patch .git/overnight.bundle .git/overnight.numstat",
        "mkdir .git/overnight.patch .git/overnight.bundle .git/index.lock",
        "ln -s /workspace/app.txt .git/overnight.patch; ln -s /etc/passwd .git/overnight.bundle",
        "git config commit.cleanup strip; git config commit.verbose true",
        "git config user.name ''; git config user.useConfigOnly true",
        "git config color.ui always; git config diff.noprefix true; git config core.pager less",
    ],
)
def test_what_a_command_prepares_for_git_loses_no_change(
    cloned: tuple[Clone, Path], context: RunContext, script: str
) -> None:
    began = time.monotonic()

    changes = changes_by(f"{script}; echo two >> app.txt", cloned, context)

    assert changes.files == ("app.txt",)
    assert changes.bundle.startswith(b"# v2 git bundle")
    assert b"+two" in changes.patch
    assert time.monotonic() - began < SECONDS / 2


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("rm -rf .git", "not a git repository"),
        ("rm -rf .git; echo 'gitdir: /proc/1/root' > .git", "not a git repository"),
        ("git checkout -q --orphan x; git commit -qm x", "has lost the commit that it began with"),
    ],
)
def test_a_clone_that_is_no_longer_one_says_why(
    cloned: tuple[Clone, Path], context: RunContext, script: str, reason: str
) -> None:
    with pytest.raises(Fail, match=reason):
        changes_by(script, cloned, context)


@pytest.fixture
def allowed() -> Iterator[Path]:
    """An allowed directory, with an empty directory `open` in it, that every user can enter."""
    with open_directory() as place:
        (place / "open").mkdir()
        yield place


def contents(source: Path | str, allowed: tuple[str, ...], context: RunContext) -> str:
    """Return what a run finds in app.txt of its clone."""
    repository = Repository(str(source), "", BRANCH, allowed)
    with workspace() as directory:
        clone(repository, directory, SandboxKind.OWN, LIMITS, context)
        left = {path.name for path in directory.parent.iterdir()}
        assert left <= {directory.name, "source.bundle"}
        return (directory / "app.txt").read_text()


def make_git_file(source: Path, private: Path) -> None:
    (source / ".git").write_text(f"gitdir: {private}/.git\n")


def make_git_link(source: Path, private: Path) -> None:
    (source / ".git").symlink_to(private / ".git")


def make_common_directory(source: Path, private: Path) -> None:
    git(source, "init", "--quiet", "--initial-branch", "main")
    (source / ".git" / "commondir").write_text(f"{private}/.git\n")


def make_alternate(source: Path, private: Path) -> None:
    git(source, "init", "--quiet", "--initial-branch", "main")
    (source / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")
    (source / ".git/refs/heads/main").write_text(git(private, "rev-parse", "HEAD"))


def make_object_links(source: Path, private: Path) -> None:
    git(source, "init", "--quiet", "--initial-branch", "main")
    for folder in (private / ".git/objects").glob("??"):
        (source / ".git/objects" / folder.name).symlink_to(folder)
    (source / ".git/refs/heads/main").write_text(git(private, "rev-parse", "HEAD"))


@pytest.mark.parametrize(
    "make",
    [make_git_file, make_git_link, make_common_directory, make_alternate, make_object_links],
)
def test_an_allowed_directory_leads_to_no_repository_that_is_not(
    repo: Path, allowed: Path, context: RunContext, make: Callable[[Path, Path], None]
) -> None:
    source = allowed / "open"
    make(source, repo)

    with pytest.raises(
        Fail, match=f"repo: {source} takes its commits from .* may not read"
    ) as told:
        contents(source, (str(allowed),), context)

    assert "OVERNIGHT_ALLOWED_REPOSITORIES is" in str(told.value)
    assert contents(source, (str(allowed), str(repo)), context) == "one\n"


def test_a_link_that_leads_to_itself_is_no_reason_to_fail(repo: Path, context: RunContext) -> None:
    (repo / ".git/objects/loop").symlink_to("loop")

    assert contents(repo, (str(repo),), context) == "one\n"


def test_a_worktree_of_an_allowed_repository_is_allowed(
    repo: Path, tmp_path: Path, context: RunContext
) -> None:
    worktree = tmp_path / "elsewhere" / "tree"
    git(repo, "worktree", "add", "--quiet", str(worktree))

    assert contents(worktree, (str(repo), str(worktree)), context) == "one\n"
    with pytest.raises(Fail, match="takes its commits from"):
        contents(worktree, (str(worktree),), context)


if os.geteuid() == 0:

    def test_git_of_a_root_worker_reads_what_the_owner_of_the_repository_may_read(
        repo: Path, allowed: Path, context: RunContext
    ) -> None:
        source = allowed / "open"
        make_git_link(source, repo)
        os.chown(source, OWNER, OWNER)

        with pytest.raises(Fail, match=r"is no git repository|Permission denied"):
            contents(source, ("/",), context)

    def test_a_repository_of_another_user_is_cloned(
        repo: Path, allowed: Path, context: RunContext
    ) -> None:
        source = allowed / "copy"
        git(allowed, "clone", "--quiet", str(repo), str(source))
        source.chmod(0o700)
        for path in (source, *source.rglob("*")):
            os.chown(path, OWNER, OWNER)

        assert contents(source, (str(allowed),), context) == "one\n"


@pytest.mark.parametrize("given_port", ["", ":8443"])
def test_a_repository_with_an_address_is_cloned_through_the_proxy(
    repo: Path,
    tmp_path: Path,
    context: RunContext,
    monkeypatch: pytest.MonkeyPatch,
    given_port: str,
) -> None:
    connected: list[tuple[str, int]] = []
    reports: list[str] = []
    monkeypatch.setattr(context, "write_log", lambda _stream, line: reports.append(line))
    # The certificate of the server is its own.
    monkeypatch.setitem(source_repository.GIT_ENV, "GIT_SSL_NO_VERIFY", "1")
    address = f"https://git.example.com{given_port}"
    with serve_repositories(repo.parent, tmp_path) as port:

        def connect(host: str, host_port: int) -> socket.socket:
            """Connect to the server of this test, whose address is private."""
            connected.append((host, host_port))
            return socket.create_connection(("127.0.0.1", port), 10)

        monkeypatch.setattr(proxy, "connect_public", connect)
        assert contents(f"{address}/repo/.git", (address,), context) == "one\n"

        with pytest.raises(Fail, match=r"cannot be cloned: .*repository .* not found"):
            contents(f"{address}/none", (address,), context)

    host_port = int(given_port[1:] or 443)
    assert set(connected) == {("git.example.com", host_port)}
    assert f" INFO connected to git.example.com:{host_port}\n" in reports[0]


def test_a_request_to_stop_ends_git_on_the_host(repo: Path, context: RunContext) -> None:
    # Git waits for somebody who writes to the pipe.
    os.mkfifo(repo / ".git/objects/info/alternates")
    began = time.monotonic()
    threading.Timer(0.5, lambda: context.stop("cancelled")).start()

    with pytest.raises(Stopped, match="cancelled"):
        contents(repo, (str(repo),), context)

    assert time.monotonic() - began < SECONDS / 4


def test_git_on_the_host_runs_no_program_of_the_repository(
    repo: Path, tmp_path: Path, context: RunContext
) -> None:
    trap = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {trap}\nfalse\n")
    program.chmod(0o755)
    for hook in ("post-checkout", "reference-transaction", "pre-auto-gc", "post-index-change"):
        (repo / ".git/hooks" / hook).symlink_to(program)
    names = "core.fsmonitor core.sshCommand core.pager core.gitProxy uploadpack.packObjectsHook"
    for name in (*names.split(), "core.alternateRefsCommand", "credential.helper", "diff.external"):
        git(repo, "config", name, str(program))

    assert contents(repo, (str(repo),), context) == "one\n"
    assert not trap.exists()


def test_what_is_no_file_in_a_clone_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = len([*Path("/proc/self/fd").iterdir()])

    for name in ("folder", "pipe"):
        with pytest.raises(OSError, match=name):
            git_workspace._read(tmp_path, name)

    assert len([*Path("/proc/self/fd").iterdir()]) == before
