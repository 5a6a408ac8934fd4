"""Commands work on clones of git repositories; their branches are applied by the command line."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from overnight_server.control.keys import issue
from overnight_server.domain.ids import TaskId, show_task
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from tests.support.api_user import ApiUser, serve_api
from tests.support.command import run
from tests.support.open_directory import open_directory
from tests.support.workers import WorkerHarness, running_worker, shared_harness

Send = Callable[..., TaskId]


def git(repo: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(repo), *words], check=True, capture_output=True)
    return done.stdout.decode()


@pytest.fixture(scope="module")
def sources() -> Iterator[Path]:
    with open_directory() as place:
        yield place


@pytest.fixture
def repo(sources: Path, request: pytest.FixtureRequest) -> Path:
    """A repository with one commit and an uncommitted file, which no run may touch."""
    repo = sources / str(abs(hash(request.node.name)))
    repo.mkdir()
    git(repo, "init", "--quiet", "--initial-branch", "main")
    git(repo, "config", "user.email", "ada@example.com")
    git(repo, "config", "user.name", "Ada")
    (repo / "app.txt").write_text("one\n")
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "-m", "first")
    (repo / "draft.txt").write_text("not committed\n")
    return repo


@pytest.fixture(scope="module")
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis, sources: Path
) -> Iterator[WorkerHarness]:
    changes = {"lease_seconds": 20, "allowed_repositories": str(sources)}
    with shared_harness(postgres, template, redis, **changes) as harness:
        harness.deployment.run(
            "INSERT INTO agent_profiles (name, profile) VALUES ('pusher', CAST(:profile AS jsonb))",
            profile='{"argv": ["sh", "-s"], "push": true}',
        )
        yield harness


@pytest.fixture(scope="module")
def send(harness: WorkerHarness) -> Iterator[Send]:
    """Send a shell script that works on a repository, to a worker of this module."""

    def send(
        repo: str | Path, script: str, ref: str | None = None, agent: str | None = None
    ) -> TaskId:
        asked = {
            "agent": agent,
            "argv": ["sh", "-c", script] if agent is None else None,
            "env": {},
            "network": None,
            "limits": None,
            "repo": str(repo),
            "ref": ref,
        }
        return harness.send(
            "command",
            execution=asked,
            required_capabilities=("runner:command",),
            title="Change the app",
            spec={"prompt": script},
            max_attempts=1,
        )

    with running_worker(harness.settings):
        yield send


def snapshot(repo: Path) -> Mapping[str, Any]:
    """Return everything in a checkout."""
    return {
        str(path.relative_to(repo)): path.read_bytes()
        for path in sorted(repo.rglob("*"))
        if path.is_file()
    }


def artifacts_of(harness: WorkerHarness, task_id: TaskId) -> dict[str, bytes]:
    rows = harness.deployment.rows("SELECT * FROM artifacts WHERE task_id = :id", id=task_id)
    return {row["name"]: bytes(row["content"]) for row in rows}


def test_a_branch_with_the_changes_is_kept_and_the_checkout_untouched(
    harness: WorkerHarness, send: Send, repo: Path, tmp_path: Path
) -> None:
    before = snapshot(repo)
    script = "git rev-parse --abbrev-ref HEAD; ls; echo two >> app.txt; echo new > made.txt"

    task_id = send(repo, script)
    row = harness.reaches(task_id, "completed", timeout=30)

    branch = f"overnight/{show_task(task_id)}"
    assert row["output"]["text"] == f"{branch}\napp.txt"
    assert row["files_changed"] == ["app.txt", "made.txt"]
    assert row["output"]["diff"] == {"files": 2, "insertions": 2, "deletions": 0}
    assert snapshot(repo) == before
    kept = artifacts_of(harness, task_id)
    assert b"+two" in kept["changes.patch"]
    (tmp_path / "branch.bundle").write_bytes(kept["branch.bundle"])
    git(repo, "fetch", "--quiet", str(tmp_path / "branch.bundle"), f"{branch}:{branch}")
    assert git(repo, "log", "--format=%s", branch).split("\n")[:2] == ["Change the app", "first"]


def test_commits_of_the_command_are_kept_as_they_are(
    harness: WorkerHarness, send: Send, repo: Path
) -> None:
    task_id = send(repo, "echo two > app.txt; git commit --quiet -a -m 'my own message'")

    row = harness.reaches(task_id, "completed", timeout=30)

    assert row["files_changed"] == ["app.txt"]
    assert b"Subject: [PATCH] my own message" in artifacts_of(harness, task_id)["changes.patch"]


def test_a_run_without_changes_keeps_no_branch(
    harness: WorkerHarness, send: Send, repo: Path
) -> None:
    task_id = send(repo, "true", ref="main")

    row = harness.reaches(task_id, "completed", timeout=30)

    assert not row["files_changed"]
    assert artifacts_of(harness, task_id) == {}


def own(path: Path, owner: int) -> None:
    for each in (path, *path.rglob("*")):
        os.chown(each, owner, owner, follow_symlinks=False)


def checkout(repo: Path) -> Mapping[str, Any]:
    """Return everything in a checkout but the objects and branches of its repository."""
    written = (".git/objects/", ".git/refs/", ".git/logs/")
    return {
        name: content for name, content in snapshot(repo).items() if not name.startswith(written)
    }


def test_a_profile_pushes_the_branch_as_the_owner_of_the_repository(
    harness: WorkerHarness, send: Send, repo: Path, tmp_path: Path
) -> None:
    owner = 12_345 if os.geteuid() == 0 else os.getuid()
    trap = tmp_path / "hook"
    hook = repo / ".git" / "hooks" / "reference-transaction"
    hook.write_text(f"#!/bin/sh\ntouch {trap}\n")
    hook.chmod(0o755)
    own(repo, owner)
    before = checkout(repo)

    task_id = send(repo, "echo two >> app.txt", agent="pusher")
    row = harness.reaches(task_id, "completed", timeout=30)

    branch = f"overnight/{show_task(task_id)}"
    assert (row["output"]["branch"], row["output"]["pushed"]) == (branch, True)
    assert checkout(repo) == before
    assert {path.stat().st_uid for path in repo.rglob("*")} == {owner}
    assert not trap.exists()
    own(repo, os.geteuid())
    assert git(repo, "show", f"{branch}:app.txt") == "one\ntwo\n"
    assert git(repo, "branch", "--format", "%(refname:short)").split() == ["main", branch]


def test_a_branch_that_cannot_be_pushed_is_kept_and_the_log_says_why(
    harness: WorkerHarness, send: Send, repo: Path
) -> None:
    # A file where git needs a directory for the branch.
    (repo / ".git" / "refs" / "heads" / "overnight").write_text(git(repo, "rev-parse", "HEAD"))

    task_id = send(repo, "echo two >> app.txt", agent="pusher")
    row = harness.reaches(task_id, "completed", timeout=30)

    assert row["output"]["pushed"] is False
    assert "branch.bundle" in artifacts_of(harness, task_id)
    chunks = harness.deployment.rows("SELECT text FROM log_chunks WHERE task_id = :id", id=task_id)
    assert "the branch was not pushed" in "".join(chunk["text"] for chunk in chunks)


def test_hooks_and_configuration_that_a_command_leaves_stay_in_its_sandbox(
    harness: WorkerHarness, send: Send, repo: Path, tmp_path: Path
) -> None:
    trap = tmp_path / "escaped"
    script = (
        f"echo '#!/bin/sh\ntouch {trap}' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit;"
        f" git config core.fsmonitor 'touch {trap}; false'; echo two > app.txt"
    )

    harness.reaches(send(repo, script), "completed", timeout=30)

    assert not trap.exists()


@pytest.mark.parametrize(
    ("source", "ref", "text"),
    [
        ("/etc", None, "this worker may not read /etc: OVERNIGHT_ALLOWED_REPOSITORIES is /"),
        ("{repo}/none", None, "none is no directory of the worker's machine"),
        ("{repo}/.git/hooks", None, "hooks is no git repository; name the directory"),
        ("{repo}", "mian", "has no branch, tag or commit 'mian'; it has main"),
    ],
)
def test_a_repository_that_cannot_be_read_fails_at_once(
    *, harness: WorkerHarness, send: Send, repo: Path, source: str, ref: str | None, text: str
) -> None:
    row = harness.reaches(send(source.format(repo=repo), "true", ref), "dead_lettered", timeout=30)

    assert row["failure_reason"] == "invalid_input"
    assert text in row["error"]


def test_a_repository_without_a_commit_fails_at_once(
    harness: WorkerHarness, send: Send, sources: Path
) -> None:
    empty = sources / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")

    row = harness.reaches(send(empty, "true"), "dead_lettered", timeout=30)

    assert row["error"] == f"repo: {empty} has no commit yet; make the first one"


def test_a_run_starts_at_a_short_commit_a_tag_or_a_detached_checkout(
    harness: WorkerHarness, send: Send, repo: Path
) -> None:
    first = git(repo, "rev-parse", "HEAD").strip()
    git(repo, "tag", "v1")
    (repo / "app.txt").write_text("two\n")
    git(repo, "commit", "--quiet", "-a", "-m", "second")
    git(repo, "checkout", "--quiet", "--detach", "main")

    for ref, content in ((first[:8], "one"), ("v1", "one"), (None, "two"), ("main", "two")):
        row = harness.reaches(send(repo, "cat app.txt", ref), "completed", timeout=30)
        assert row["output"]["text"] == content, ref


def test_two_branches_are_applied_and_the_second_says_what_conflicts(
    harness: WorkerHarness, send: Send, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (send(repo, f"echo {word} > app.txt") for word in ("red", "blue"))
    for task_id in (first, second):
        harness.reaches(task_id, "completed", timeout=30)
    database_url = str(harness.settings.database_url)
    with serve_api(harness.deployment, database_url) as other:
        key = issue(harness.deployment.app, harness.user, name="test", scopes=("*",))
        ApiUser(other.http, harness.deployment, harness.user, key).take_commands(monkeypatch)
        applied = run("apply", show_task(first), "--repo", str(repo))
        assert applied.exit_code == 0, applied.stderr
        assert "git merge overnight/" in applied.stderr
        git(repo, "merge", "--quiet", f"overnight/{show_task(first)}")
        conflicting = run("apply", show_task(second), "--repo", str(repo))

    assert "conflicts with the current branch in: app.txt" in conflicting.stderr
    assert git(repo, "show", f"overnight/{show_task(second)}:app.txt") == "blue\n"
