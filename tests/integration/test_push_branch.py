"""The branch of a run is brought into its repository by the holder of the claim only."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from overnight import Stopped
from overnight_server.control.cancel import cancel
from overnight_server.domain.claims import Run
from overnight_server.domain.results import Interrupted
from overnight_server.store.db import Db
from overnight_server.wakeups.wake import Waker
from overnight_worker.git_workspace import Clone, Repository
from overnight_worker.push_branch import push_branch
from overnight_worker.resources import WorkerResources
from overnight_worker.run_context import RunContext
from overnight_worker.sandbox import SandboxKind
from overnight_worker.task_graph import RunGraph
from tests.support.deployment import Deployment
from tests.support.workers import worker_settings

NOWHERE = "redis://127.0.0.1:1/0"
BRANCH = "overnight/task_1"


def git(repo: Path, *words: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    done = subprocess.run(
        ["git", "-C", str(repo), *identity, *words], check=True, capture_output=True
    )
    return done.stdout.decode()


@dataclass
class Pushed:
    """A run whose branch is ready, and the repository that it is for."""

    run: Run
    context: RunContext
    repo: Path
    workspace: Path
    bundle: bytes

    def push(self, source: str | None = None) -> bool:
        """Push the branch as the worker does when a run has succeeded."""
        repository = Repository(source or str(self.repo), "", BRANCH)
        clone = Clone(repository, git(self.repo, "rev-parse", "main").strip(), SandboxKind.OWN)
        return push_branch(clone, self.bundle, self.workspace, self.context)

    def branches(self) -> list[str]:
        """Return the branches of the repository."""
        return git(self.repo, "branch", "--format", "%(refname:short)").split()


@pytest.fixture
def pushed(deployment: Deployment, database_url: str, db: Db, tmp_path: Path) -> Iterator[Pushed]:
    repo, clone, workspace = tmp_path / "repo", tmp_path / "clone", tmp_path / "run" / "workspace"
    workspace.mkdir(parents=True)
    repo.mkdir()
    git(repo, "init", "--quiet", "--initial-branch", "main")
    git(repo, "commit", "--quiet", "--allow-empty", "-m", "first")
    git(tmp_path, "clone", "--quiet", str(repo), str(clone))
    git(clone, "checkout", "--quiet", "-b", BRANCH)
    git(clone, "commit", "--quiet", "--allow-empty", "-m", "second")
    git(clone, "bundle", "create", "--quiet", str(tmp_path / "bundle"), BRANCH, "^main")
    deployment.agent()
    run = deployment.running(deployment.user())
    waker = Waker(NOWHERE)
    resources = WorkerResources(worker_settings(database_url, NOWHERE), db, waker)
    context = RunContext(run, deadline=1e12, graph=RunGraph(resources, run))
    yield Pushed(run, context, repo, workspace, (tmp_path / "bundle").read_bytes())
    waker.close()


def test_the_holder_of_the_claim_pushes_and_may_push_again(pushed: Pushed) -> None:
    assert pushed.push()
    assert pushed.push()

    assert pushed.branches() == ["main", BRANCH]
    assert git(pushed.repo, "log", "--format=%s", BRANCH).split() == ["second", "first"]
    assert not (pushed.repo / ".git" / "FETCH_HEAD").exists()
    assert list(pushed.workspace.parent.iterdir()) == [pushed.workspace]


def test_a_run_that_lost_its_claim_pushes_nothing(deployment: Deployment, pushed: Pushed) -> None:
    deployment.settle(pushed.run, Interrupted())

    with pytest.raises(Stopped):
        pushed.push()

    assert pushed.branches() == ["main"]


def test_a_run_that_is_cancelled_pushes_nothing(deployment: Deployment, pushed: Pushed) -> None:
    cancel(deployment.app, pushed.run.user_id, pushed.run.claim.task_id, actor="human:test")

    with pytest.raises(Stopped):
        pushed.push()

    assert pushed.branches() == ["main"]


def test_a_branch_that_somebody_works_on_is_not_moved(pushed: Pushed) -> None:
    git(pushed.repo, "checkout", "--quiet", "-b", BRANCH)

    assert not pushed.push()

    assert git(pushed.repo, "log", "--format=%s", BRANCH).split() == ["first"]


def test_a_url_is_not_pushed_to(pushed: Pushed) -> None:
    assert not pushed.push("https://git.example.com/site")

    assert pushed.branches() == ["main"]
