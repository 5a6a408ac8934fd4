"""The examples, run as they stand against the real API."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from overnight import testing
from overnight.graphs.draw import draw
from overnight.handlers import registry
from overnight.models.dags import DagCreate
from overnight_server.cli.commands import batch_files
from overnight_server.control.keys import issue
from overnight_server.domain.results import Returned
from overnight_server.maintenance.triggers import fire_due
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import LOOSE, Deployment
from tests.support.live_api import serve

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = EXAMPLES.parent / "docs" / "guides" / "graphs.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
GOAL = "Build a landing page for client X"


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        api_user.deployment.agent()
        yield api_user


@pytest.fixture
def orchestrator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module; the handlers it registers are forgotten afterwards."""
    monkeypatch.setattr(registry, "_handlers", {})
    spec = importlib.util.spec_from_file_location("orchestrator", EXAMPLES / "orchestrator.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def play(api_user: ApiUser) -> list[str]:
    """Run everything that may run, again and again; return the names in the order they ended."""
    ended = []
    while claims := api_user.deployment.claim().claims:
        for claimed in claims:
            run = api_user.deployment.start(claimed)
            assert run is not None
            ended.append(api_user.deployment.row(run.claim.task_id)["name"])
            api_user.deployment.settle(run, Returned({}))
    return ended


def test_a_goal_becomes_one_graph_and_runs_to_its_end(
    api_user: ApiUser, orchestrator: ModuleType
) -> None:
    client = api_user.client()

    made = orchestrator.orchestrate(client, GOAL, budget_usd=5)

    assert made.roots == ["research", "design"]
    assert made.leaves == ["test"]
    assert made.critical_path.tasks == ["research", "requirements", "implement", "test"]
    assert sorted(play(api_user)[:2]) == ["design", "research"]
    ended = client.dags.wait(made.id, timeout=5)
    assert (ended.status, ended.budget_usd) == ("completed", 5.0)
    [dag] = client.dags.list()
    assert dag.counts.total == 5


def test_the_same_goal_under_one_key_is_one_graph(
    api_user: ApiUser, orchestrator: ModuleType
) -> None:
    client = api_user.client()

    first = orchestrator.orchestrate(client, GOAL, idempotency_key="tonight")
    again = orchestrator.orchestrate(client, GOAL, idempotency_key="tonight")

    assert first == again
    assert len(list(client.dags.list())) == 1


@pytest.mark.parametrize(
    ("goal", "names"),
    [
        ("Fix the crash at login", ["reproduce", "fix", "review", "tests", "deploy", "explain"]),
        ("Sort the archive", ["research", "do", "review"]),
    ],
)
def test_the_rules_choose_a_graph_by_the_goal(
    orchestrator: ModuleType, goal: str, names: list[str]
) -> None:
    assert [task.name for task in orchestrator.by_rules(goal).tasks] == names


def test_a_model_gets_the_mistakes_of_its_answer(
    api_user: ApiUser, orchestrator: ModuleType
) -> None:
    ring = [{"name": "a", "after": ["b"]}, {"name": "b", "after": ["a"]}]
    good = [{"name": "a", "type": "code"}, {"name": "b", "after": ["a"]}]
    answers = [
        "Sure! Here is your plan.",
        json.dumps({"title": "x", "tasks": ring}),
        f"Here you are: {json.dumps({'title': 'x', 'tasks': good})} Anything else?",
    ]
    prompts: list[str] = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        return answers[len(prompts) - 1]

    made = orchestrator.orchestrate(api_user.client(), GOAL, orchestrator.by_model(answer))

    assert list(made.tasks) == ["a", "b"]
    assert GOAL in prompts[0]
    assert "Would create circular dependency: a → b → a" in prompts[2]


def test_a_model_without_a_usable_answer_submits_nothing(
    api_user: ApiUser, orchestrator: ModuleType
) -> None:
    decompose = orchestrator.by_model(lambda _: "[]")

    with pytest.raises(ValueError, match="no usable graph after 3 answers"):
        orchestrator.orchestrate(api_user.client(), GOAL, decompose)

    assert list(api_user.client().dags.list()) == []


def test_every_type_of_the_example_has_a_handler(orchestrator: ModuleType) -> None:
    used = {task.type for goal in (GOAL, "fix", "x") for task in orchestrator.by_rules(goal).tasks}

    assert used <= set(registry.registered())
    done = testing.run("research", context=testing.MemoryContext(title="x"))
    assert done.output == {"would": "x"}


def test_the_dry_run_needs_no_server() -> None:
    shown = subprocess.run(
        [sys.executable, EXAMPLES / "orchestrator.py", GOAL, "--dry-run"],
        check=True,
        capture_output=True,
        text=True,
    )

    assert len(json.loads(shown.stdout)["tasks"]) == 5


def test_the_file_is_the_graph_of_the_orchestrator(orchestrator: ModuleType) -> None:
    text = (EXAMPLES / "landing_page.yaml").read_text(encoding="utf-8")

    [entry], wrong = batch_files.entries(batch_files.read(text))

    assert not wrong
    assert isinstance(entry.content, DagCreate)
    by_rules = {task.name: task.type for task in orchestrator.by_rules(GOAL).tasks}
    in_file = {task.name: task.type for task in entry.content.tasks if task.name != "tidy"}
    assert in_file == by_rules


def _blocks(language: str) -> list[str]:
    return [
        text for kind, text in FENCE.findall(PAGE.read_text(encoding="utf-8")) if kind == language
    ]


def test_the_page_shows_the_file_and_its_result(api_user: ApiUser) -> None:
    [in_page] = _blocks("yaml")
    [as_text] = _blocks("text")

    [entry], _ = batch_files.entries(batch_files.read(in_page))
    assert isinstance(entry.content, DagCreate)
    made = api_user.client().dags.create(entry.content)

    assert in_page == (EXAMPLES / "landing_page.yaml").read_text(encoding="utf-8")
    assert draw(api_user.client().dags.get(made.id), "ascii") == as_text


def test_the_page_shows_the_responses_of_the_service(api_user: ApiUser) -> None:
    body, expected = map(json.loads, _blocks("json"))

    answer = api_user.request("POST", "/api/v1/dags", json=body)

    assert answer.status_code == 201
    assert {name: answer.json()[name] for name in expected} == expected


def test_the_page_shows_a_trigger(api_user: ApiUser) -> None:
    [block] = _blocks("py")
    client = api_user.client()
    names: dict[str, Any] = {"client": client}

    exec(compile(block, str(PAGE), "exec"), names)
    play(api_user)
    assert fire_due(api_user.deployment.dispatcher, LOOSE) == 1

    [trigger] = client.triggers.list()
    assert trigger.id == names["trigger"].id
    assert trigger.fired_dag_id is not None
    assert client.dags.get(trigger.fired_dag_id).title == "Mail the client"


def test_the_page_shows_an_error_message() -> None:
    text = "title: x\ntasks:\n- name: research\n- name: b\n  type: echo\n  after:\n  - reserch\n"

    _, [wrong] = batch_files.entries(batch_files.read(text))

    message, _, _ = wrong.line_text("night.yaml").partition(" (allowed")
    assert message in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, "laptop: no Overnight server was found"),
        ("overnight_live_wrong", "laptop: authentication failed"),
        ("narrow", "laptop: this key lacks the scope agents:run"),
    ],
)
def test_an_agent_that_cannot_start_prints_one_line(
    deployment: Deployment, database_url: str, tmp_path: Path, key: str | None, message: str
) -> None:
    with serve(deployment, database_url) as served:
        narrow = issue(deployment.app, served.user, name="narrow", scopes=("tasks:read",))
        shown = narrow if key == "narrow" else key
        where = {} if shown is None else {"OVERNIGHT_URL": served.url, "OVERNIGHT_API_KEY": shown}
        ran = subprocess.run(
            [sys.executable, EXAMPLES / "pull_agent.py", "laptop"],
            cwd=tmp_path,
            env={"PYTHONPATH": str(EXAMPLES.parent), "HOME": str(tmp_path), **where},
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert ran.returncode == 1
    [line] = ran.stderr.splitlines()
    assert line.startswith(message)
