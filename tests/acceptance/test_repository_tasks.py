"""Tasks of one repository: one after the other, or in parallel on branches that can be merged."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overnight import Task
from overnight_server.control.keys import issue
from overnight_server.domain.ids import parse_task
from tests.support.command import run
from tests.support.open_directory import open_directory
from tests.support.stack import Stack
from tests.support.wait import wait_until

SOON = 30.0


def git(repo: Path, *words: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    done = subprocess.run(
        ["git", "-C", str(repo), *identity, *words], check=True, capture_output=True
    )
    return done.stdout.decode()


class Site:
    """A repository, and agents on it that wait for a file before they change something."""

    def __init__(self, stack: Stack, place: Path) -> None:
        self.stack = stack
        self.repo, self.gate = place / "site", place / "gate"
        self.repo.mkdir()
        self.gate.mkdir()
        git(self.repo, "init", "--quiet", "--initial-branch", "main")
        (self.repo / "app.txt").write_text("one\n")
        git(self.repo, "add", ".")
        git(self.repo, "commit", "--quiet", "-m", "first")
        mount = {"source": str(self.gate), "target": "/gate"}
        stack.deployment.run(
            "INSERT INTO agent_profiles (name, profile) VALUES ('gated', CAST(:profile AS jsonb))",
            profile=json.dumps({"argv": ["sh", "-s"], "mounts": [mount]}),
        )
        self.user, self.client = stack.user()
        self.key_file = place / "key"
        self.key_file.write_text(issue(stack.deployment.app, self.user, name="cli"))

    def add(self, file: str, *, parallel: bool | None = None) -> Task:
        """Add a task that writes its own text into a file, when the gate is open."""
        script = f"until test -e /gate/open; do sleep 0.05; done; echo $OVERNIGHT_TASK_ID > {file}"
        return self.client.tasks.create(
            "Change it", agent="gated", repo=str(self.repo), prompt=script, parallel=parallel
        )

    def open_gate(self) -> None:
        """Let the agents go on."""
        (self.gate / "open").touch()

    def reaches(self, task: Task, state: str) -> None:
        """Wait until a task is in a state."""
        deployment, task_id = self.stack.deployment, parse_task(task.id)
        wait_until(lambda: deployment.state(task_id) == state, timeout=SOON, what=state)

    def apply(self, task: Task) -> str:
        """Apply the branch of a task, and return what the command says about it."""
        url = f"http://127.0.0.1:{self.stack.settings.api_port}"
        words = ("--repo", str(self.repo), "--url", url, "--api-key-file", str(self.key_file))
        applied = run("apply", task.id, *words)
        assert applied.exit_code == 0, applied.stderr
        assert applied.stdout == f"overnight/{task.id}\n"
        return applied.stderr


@pytest.fixture
def site(build: Callable[..., Stack]) -> Iterator[Site]:
    with open_directory() as place:
        stack = build(allowed_repositories=str(place), lease_seconds=20)
        yield Site(stack.start("api", "dispatcher", "worker").ready(), place)


def test_two_tasks_of_one_repository_never_run_at_once(site: Site) -> None:
    first, second = site.add("app.txt"), site.add("app.txt")
    site.reaches(first, "running")

    explained = site.client.tasks.explain(second.id)
    site.open_gate()
    for task in (first, second):
        site.reaches(task, "completed")

    assert [reason.code for reason in explained.reasons] == ["lock"]
    order = "SELECT task_id FROM attempts ORDER BY started_at"
    assert [row["task_id"] for row in site.stack.deployment.rows(order)] == [
        parse_task(first.id),
        parse_task(second.id),
    ]
    overlaps = site.stack.deployment.one(
        "SELECT count(*) AS n FROM attempts a JOIN attempts b"
        " ON a.task_id < b.task_id AND a.started_at < b.ended_at AND b.started_at < a.ended_at"
    )
    assert overlaps["n"] == 0


def test_parallel_tasks_run_at_once_and_their_branches_apply_cleanly(site: Site) -> None:
    first, second = (site.add(file, parallel=True) for file in ("red.txt", "blue.txt"))
    for task in (first, second):
        site.reaches(task, "running")

    site.open_gate()
    for task in (first, second):
        site.reaches(task, "completed")
        assert "Merge it with `git merge overnight/" in site.apply(task)
        git(site.repo, "merge", "--quiet", "--no-edit", f"overnight/{task.id}")

    assert (site.repo / "red.txt").read_text() == f"{first.id}\n"
    assert (site.repo / "blue.txt").read_text() == f"{second.id}\n"


def test_the_second_of_two_parallel_tasks_says_which_files_conflict(site: Site) -> None:
    first, second = (site.add("app.txt", parallel=True) for _ in range(2))
    for task in (first, second):
        site.reaches(task, "running")

    site.open_gate()
    for task in (first, second):
        site.reaches(task, "completed")
    site.apply(first)
    git(site.repo, "merge", "--quiet", f"overnight/{first.id}")

    assert "It conflicts with the current branch in: app.txt" in site.apply(second)
    assert git(site.repo, "status", "--porcelain") == "", "nothing was merged"
