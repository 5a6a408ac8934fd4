"""What a command may leave in its clone, and what git then makes of it, in a real sandbox."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight.handlers.control_exceptions import Fail
from overnight.handlers.outcome import storable
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
from overnight_worker.sandbox import SandboxKind, SandboxLimits, SandboxSpec
from tests.support.sample_run import RUN

SECONDS = 60
BRANCH = "overnight/task_1"
LIMITS = SandboxLimits(workspace_mb=64)


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
    repository = Repository(str(repo), "", BRANCH)
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
