"""`overnight apply` and branches that an agent has made, with names that no person would choose."""

import os
import subprocess
from pathlib import Path

import pytest

from overnight_server.cli.commands import apply

BRANCH = "overnight/task_1"


def git(repo: Path, *words: str | bytes) -> bytes:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    return subprocess.run(
        ["git", "-C", str(repo), *identity, *words], check=True, capture_output=True
    ).stdout


def commit(repo: Path, name: bytes, text: str) -> None:
    (Path(os.fsdecode(os.fsencode(repo) + b"/" + name))).write_text(text)
    git(repo, "add", "--all")
    git(repo, "commit", "--quiet", "-m", text)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "--quiet", "--initial-branch", "main")
    commit(repo, b"a", "first")
    return repo


@pytest.fixture
def bundle(repo: Path, tmp_path: Path) -> bytes:
    """A branch that changes a file whose name is not UTF-8, and a tag with the branch's name."""
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(repo), str(clone))
    git(clone, "tag", BRANCH)
    git(clone, "checkout", "--quiet", "-b", BRANCH)
    commit(clone, b"caf\xe9", "theirs")
    file = str(tmp_path / "bundle")
    refs = (f"refs/heads/{BRANCH}", f"refs/tags/{BRANCH}")
    git(clone, "bundle", "create", "--quiet", file, *refs)
    return Path(file).read_bytes()


def test_a_conflict_in_a_file_whose_name_is_no_text_is_named(repo: Path, bundle: bytes) -> None:
    commit(repo, b"caf\xe9", "ours")

    apply._fetch(repo, bundle, BRANCH)

    assert apply._conflicts(repo, BRANCH) == ["caf\ufffd"]
    assert git(repo, "show", f"refs/heads/{BRANCH}:caf\udce9".encode(errors="surrogateescape")) == (
        b"theirs"
    )


def test_only_the_branch_is_fetched(repo: Path, bundle: bytes) -> None:
    apply._fetch(repo, bundle, BRANCH)

    refs = git(repo, "for-each-ref", "--format=%(refname)").decode().split()
    assert refs == ["refs/heads/main", f"refs/heads/{BRANCH}"]
    assert not (repo / ".git" / "FETCH_HEAD").exists()


def test_a_repository_in_which_conflicts_cannot_be_told_has_unknown_ones(
    repo: Path, bundle: bytes
) -> None:
    apply._fetch(repo, bundle, BRANCH)
    assert apply._conflicts(repo, BRANCH) == []

    git(repo, "checkout", "--quiet", "--orphan", "empty")
    assert apply._conflicts(repo, BRANCH) is None
