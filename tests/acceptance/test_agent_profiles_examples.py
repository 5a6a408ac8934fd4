"""The example profiles of coding agents, run by a worker with stand-ins for the agents.

Each stand-in accepts the options of the real agent and prints what that prints. Everything else is
real: the profile, its secrets, its network list, the sandbox and the repository.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from overnight.models.execution import AgentProfile
from overnight.models.field_errors import validate
from overnight_server.cli.commands.agent_profiles import _profile_in, _with_absolute_sources
from overnight_server.domain.ids import TaskId
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from tests.support.open_directory import open_directory
from tests.support.workers import ROOT, WorkerHarness, running_worker, shared_harness

PROFILES = ROOT / "examples" / "agents" / "profiles"
NAMES = ("aider", "claude", "codex", "gemini")
STAND_IN = ROOT / "tests" / "support" / "stand_in_agents.py"
SECRETS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")
Run = Callable[..., TaskId]


def profile_of(name: str) -> dict[str, Any]:
    """Return a profile as `overnight agent-profile add` sends it."""
    file = PROFILES / f"{name}.yaml"
    return _with_absolute_sources(_profile_in(str(file)), file.parent)


def with_stand_in(name: str, place: Path) -> str:
    """Return a profile that finds the stand-in where the agent would be."""
    profile = profile_of(name)
    if name == "aider":
        profile["mounts"] = [{"source": str(place / "aider"), "target": "/opt/aider"}]
    else:
        profile["mounts"] += [{"source": str(place), "target": "/opt/stand-ins"}]
        profile["env"]["PATH"] = "/opt/stand-ins:/usr/bin:/bin"
    return validate(AgentProfile, profile).model_dump_json(exclude_none=True)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that the user of a sandbox can read, with stand-ins and repositories."""
    with open_directory() as place:
        (place / "aider" / "bin").mkdir(parents=True)
        for name in NAMES:
            folder = place / "aider" / "bin" if name == "aider" else place
            shutil.copy(STAND_IN, folder / name)
        yield place


@pytest.fixture(scope="module")
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis, place: Path
) -> Iterator[WorkerHarness]:
    changes = {"lease_seconds": 20, "allowed_repositories": str(place)}
    with shared_harness(postgres, template, redis, **changes) as harness:
        for name in NAMES:
            harness.deployment.run(
                "INSERT INTO agent_profiles (name, profile)"
                " VALUES (:name, CAST(:profile AS jsonb))",
                name=name,
                profile=with_stand_in(name, place),
            )
        yield harness


@pytest.fixture
def repo(place: Path, request: pytest.FixtureRequest) -> Path:
    repo = place / f"repo-{abs(hash(request.node.name))}"
    commit = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "commit", "--quiet")
    for words in (("init", "--quiet", "-b", "main"), (*commit, "--allow-empty", "-m", "first")):
        repo.mkdir(exist_ok=True)
        subprocess.run(["git", "-C", str(repo), *words], check=True)
    return repo


@pytest.fixture(scope="module")
def run(harness: WorkerHarness) -> Iterator[Run]:
    """Run a prompt with an agent, on a worker of this module that has the secrets."""

    def run(agent: str, prompt: str, repo: Path) -> TaskId:
        asked = {"agent": agent, "argv": None, "env": {}, "network": None, "limits": None}
        return harness.send(
            "command",
            execution={**asked, "repo": str(repo), "ref": None},
            required_capabilities=("runner:command",),
            title="Write a note",
            spec={"prompt": prompt},
            max_attempts=1,
        )

    with pytest.MonkeyPatch.context() as patch:
        for name in SECRETS:
            patch.setenv(f"SECRET_{name}", f"value-of-{name.lower()}")
        with running_worker(harness.settings):
            yield run


def attempt_of(harness: WorkerHarness, task_id: TaskId) -> Mapping[str, Any]:
    return harness.deployment.one("SELECT * FROM attempts WHERE task_id = :id", id=task_id)


@pytest.mark.parametrize("name", [path.stem for path in sorted(PROFILES.glob("*.yaml"))])
def test_every_example_is_a_profile_that_names_its_program_and_its_secrets(name: str) -> None:
    profile = validate(AgentProfile, profile_of(name))

    assert profile.description
    assert all(mount.source.startswith("/") for mount in profile.mounts)
    keys = {key: value for key, value in profile.env.items() if key.endswith("_KEY")}
    assert bool(keys) == (name != "scripted")
    assert all(value.startswith("secret:") for value in keys.values())
    assert (profile.network == "off") == (name == "scripted")
    assert bool(profile.models) == (name != "scripted")


def test_there_is_an_example_for_each_stand_in() -> None:
    assert {path.stem for path in PROFILES.glob("*.yaml")} == {*NAMES, "scripted"}


@pytest.mark.parametrize("name", NAMES)
def test_an_agent_gets_the_prompt_and_leaves_a_branch(
    harness: WorkerHarness, run: Run, repo: Path, name: str
) -> None:
    task_id = run(name, "Remember the milk.\nTwo lines, 'quotes' and $(no shell).", repo)

    row = harness.reaches(task_id, "completed", timeout=30)

    assert row["files_changed"] == ["notes.txt"], "and none of the agent's own files"
    assert row["output"]["diff"] == {"files": 1, "insertions": 2, "deletions": 0}
    patch = harness.deployment.one(
        "SELECT content FROM artifacts WHERE task_id = :id AND name = 'changes.patch'", id=task_id
    )
    assert b"+Two lines, 'quotes' and $(no shell)." in bytes(patch["content"])
    attempt = attempt_of(harness, task_id)
    [host] = json.loads(with_stand_in(name, Path("/x")))["network"]["allow"]
    assert attempt["sandbox"].endswith(f"network {host}")


@pytest.mark.parametrize(("name", "usd"), [("claude", 0.0125), ("codex", 0), ("gemini", 0)])
def test_an_agent_reports_its_answer_its_tokens_and_its_cost(
    harness: WorkerHarness, run: Run, repo: Path, name: str, usd: float
) -> None:
    task_id = run(name, "Remember the milk.", repo)

    row = harness.reaches(task_id, "completed", timeout=30)

    assert row["result_summary"] == "I wrote the note."
    assert row["output"]["text"] == "I wrote the note."
    assert float(row["cost_usd"]) == pytest.approx(usd)
    assert attempt_of(harness, task_id)["tokens_used"] == {"input": 900, "output": 150}


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
@pytest.mark.parametrize(
    ("prompt", "error_class"), [("login refused", "auth_failure"), ("limit reached", "rate_limit")]
)
def test_an_agent_that_is_refused_fails_with_the_class_of_its_reason(
    *, harness: WorkerHarness, run: Run, repo: Path, name: str, prompt: str, error_class: str
) -> None:
    task_id = run(name, prompt, repo)

    row = harness.reaches(task_id, "dead_lettered", timeout=30)

    assert row["failure_reason"] == error_class, row["error"]
