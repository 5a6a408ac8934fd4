"""`overnight batch` and `overnight dag` against the real API."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from overnight import errors
from overnight_server.cli.main import app
from overnight_server.cli.terminal.failures import Code
from overnight_server.domain.results import Raised, Returned
from tests.support.api_user import ApiUser, serve_api
from tests.support.deployment import Deployment
from tests.support.graphs import begin

GRAPH = """\
title: a page
budget_usd: 5
tasks:
  - {name: research, type: echo, max_attempts: 1}
  - {name: design, type: echo, after: [research]}
  - {name: build, title: Build it, after: [research, design]}
"""


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        api_user.deployment.agent()
        yield api_user


@pytest.fixture(autouse=True)
def place(api_user: ApiUser, empty_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place whose commands reach this API and nothing else."""
    api_user.take_commands(monkeypatch)


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin, prog_name="overnight")


def read(*arguments: str, stdin: str | None = None) -> Any:
    shown = run(*arguments, "--json", stdin=stdin)
    assert shown.exit_code == 0, shown.stderr
    return json.loads(shown.stdout)


def queued(text: str = GRAPH) -> dict[str, Any]:
    [dag] = read("batch", "-", stdin=text)["dags"]
    shown: dict[str, Any] = dag
    return shown


def settle(api_user: ApiUser, task: str, *, well: bool = True) -> None:
    [started] = begin(api_user.deployment, api_user.row_id(task))
    result = Returned({}) if well else Raised("error", "boom")
    assert api_user.deployment.settle(started, result)


def test_a_file_is_submitted_graph_by_graph(api_user: ApiUser, tmp_path: Path) -> None:
    (tmp_path / "night.yaml").write_text(f"{GRAPH}---\n- title: alone\n", encoding="utf-8")

    shown = run("batch", "night.yaml")

    assert shown.exit_code == 0, shown.stderr
    header, dag, task = [line.split(None, 2) for line in shown.stdout.splitlines()]
    assert header == ["ID", "TASKS", "TITLE"]
    assert dag[0].startswith("dag_")
    assert dag[1:] == ["3", "a page"]
    assert task[0].startswith("task_")
    rows = api_user.deployment.rows("SELECT source FROM tasks")
    assert [row["source"] for row in rows] == ["cli"] * 4


def test_json_from_stdin_prints_one_document() -> None:
    document = json.dumps({"title": "g", "tasks": [{"name": "a"}, {"name": "b", "after": ["a"]}]})

    answer = read("batch", "-", stdin=document)

    assert answer["tasks"] == []
    assert answer["dags"][0]["critical_path"] == {"tasks": ["a", "b"], "weight": 2}


def test_errors_name_file_line_and_field_and_nothing_is_submitted(
    api_user: ApiUser, tmp_path: Path
) -> None:
    wrong = GRAPH.replace("after: [research]", "after: [reserch], priority: 9")
    (tmp_path / "night.yaml").write_text(f"- title: fine\n---\n{wrong}", encoding="utf-8")

    shown = run("batch", "night.yaml")

    assert shown.exit_code == Code.USAGE
    assert shown.stdout == ""
    assert "night.yaml:7: tasks.1.priority: is too large" in shown.stderr
    assert api_user.deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 0


def test_several_errors_are_printed_one_per_line() -> None:
    shown = run("batch", "-", stdin="- title: a\n  priority: 9\n- title: b\n  odd: 1\n")

    assert shown.exit_code == Code.USAGE
    first, second, last = shown.stderr.splitlines()
    assert first.startswith("stdin:2: 0.priority: ")
    assert second.startswith("stdin:4: 1.odd: is not a known field")
    assert last == "Error: stdin has 2 faults; nothing was submitted"


def test_json_output_contains_the_errors() -> None:
    shown = run("batch", "-", "--json", stdin="- title: a\n  priority: 9\n- title: b\n  odd: 1\n")
    unreadable = run("batch", "-", "--json", stdin="a: [")

    error = json.loads(shown.stderr)["error"]
    assert error["message"] == "stdin has 2 faults; nothing was submitted"
    assert [(fault["file"], fault["line"], fault["field"]) for fault in error["faults"]] == [
        ("stdin", 2, "0.priority"),
        ("stdin", 4, "1.odd"),
    ]
    assert all(fault["message"] and fault["legal"] for fault in error["faults"])
    assert len(json.loads(unreadable.stderr)["error"]["faults"]) == 1


def test_json_output_lists_graphs_submitted_before_a_limit(api_user: ApiUser) -> None:
    api_user.deployment.run("UPDATE users SET max_pending = 4")

    shown = run("batch", "-", "--json", stdin=f"{GRAPH}---\n{GRAPH}")

    assert len(json.loads(shown.stdout)["dags"]) == 1
    assert json.loads(shown.stderr)["error"]["code"] == "TOO_MANY_PENDING"


def test_a_limit_reached_halfway_lists_the_submitted_graphs(api_user: ApiUser) -> None:
    api_user.deployment.run("UPDATE users SET max_pending = 3 WHERE id = :id", id=api_user.user)

    shown = run("batch", "-", stdin=f"{GRAPH}---\n{GRAPH}")

    assert shown.exit_code == Code.LIMITED
    assert "1 of 2 were submitted before the failure:" in shown.stderr
    assert "3 of your tasks are waiting and 3 more were requested" in shown.stderr
    assert api_user.deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 3


def test_the_same_command_submits_the_rest_after_a_refusal(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.run("UPDATE users SET max_pending = 3")
    Path("night.yaml").write_text("- title: a\n- title: b\n- title: b\n- title: c\n- title: d\n")

    refused = run("batch", "night.yaml")
    deployment.run("UPDATE users SET max_pending = 9")
    resumed = run("batch", "night.yaml")
    titles = [row["title"] for row in deployment.rows("SELECT title FROM tasks ORDER BY id")]
    complete = run("batch", "night.yaml")

    assert refused.exit_code == Code.LIMITED
    assert "The same command submits the rest, and nothing twice." in refused.stderr
    assert "`overnight batch` with the same file submits the rest" in refused.stderr
    assert "what it submitted is not submitted again" in resumed.stderr
    assert len(resumed.stdout.splitlines()) == 6
    assert titles == ["a", "b", "b", "c", "d"]
    # A batch that was submitted completely can be submitted again.
    assert (complete.exit_code, "earlier command" in complete.stderr) == (Code.LIMITED, False)


def test_a_corrected_file_resumes_too(api_user: ApiUser) -> None:
    api_user.deployment.run("UPDATE users SET max_tasks_per_dag = 2")
    Path("night.yaml").write_text(f"title: a\n---\n{GRAPH}")
    wrong = run("batch", "night.yaml")
    Path("night.yaml").write_text("title: a\n---\ntitle: b\n")

    assert (wrong.exit_code, run("batch", "night.yaml").exit_code) == (Code.USAGE, Code.OK)

    rows = api_user.deployment.rows("SELECT title FROM tasks ORDER BY id")
    assert [row["title"] for row in rows] == ["a", "b"]


def test_an_error_of_the_service_names_the_line_too(api_user: ApiUser) -> None:
    api_user.deployment.run(
        "UPDATE users SET max_tasks_per_dag = 2 WHERE id = :id", id=api_user.user
    )

    shown = run("batch", "-", stdin=GRAPH)

    assert shown.exit_code == Code.USAGE
    assert "stdin:3: tasks: " in shown.stderr
    assert "at most 2" in shown.stderr


def test_a_dry_run_submits_nothing(api_user: ApiUser) -> None:
    shown = run("batch", "-", "--dry-run", "--by", "2999-01-01T00:00Z", stdin=GRAPH)

    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.startswith("a page: 3 of 3 will have ended by 2999-01-01")
    assert "Nothing was submitted." in shown.stderr
    assert api_user.deployment.one("SELECT count(*) AS n FROM tasks")["n"] == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["batch"], "FILE is missing"),
        (["batch", "x", "--dry-run", "--wait"], "cannot be used together"),
        (["batch", "x", "--by", "07:00"], "--by needs --dry-run"),
        (["batch", "missing.yaml"], "cannot read missing.yaml"),
        (["dag", "graph", "x", "--format", "png"], "is not a format"),
        (["dag", "graph", "x", "-o", "x.png"], "'x.png' is not that of a drawing"),
        (["dag", "graph", "x", "-o", "x"], "Use one of .svg, .dot, .gv, .mmd"),
    ],
)
def test_wrong_usage_prints_one_line(arguments: list[str], expected: str) -> None:
    shown = run(*arguments)

    assert shown.exit_code == Code.USAGE
    assert expected in shown.stderr


def test_the_schema_is_printed_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OVERNIGHT_URL")

    assert "DagCreate" in json.loads(run("batch", "--schema").stdout)["$defs"]


def test_wait_ends_with_the_last_graph_and_exits_with_the_worst_state(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_all(*_: object) -> None:
        for claimed in api_user.deployment.claim().claims:
            started = api_user.deployment.start(claimed)
            assert started is not None
            api_user.deployment.settle(started, Raised("error", "boom"))

    monkeypatch.setattr("overnight.Client", lambda *_, **__: api_user.client(sleep=end_all))
    monkeypatch.setattr("overnight.client.calls.MAX_HOLD_SECONDS", 0)

    shown = run("batch", "-", "--wait", stdin=GRAPH)

    assert shown.exit_code == Code.NOT_COMPLETED
    assert "failed" in shown.stdout
    assert "research (error)" in shown.stderr


def test_a_wait_that_loses_the_server_prints_the_ids(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise errors.Unreachable("no answer")

    monkeypatch.setattr("overnight.client.dags.long_poll", away)

    shown = run("batch", "-", "--wait", "--json", stdin=GRAPH)

    [dag] = read("dag", "list")
    error = json.loads(shown.stderr)["error"]
    assert (shown.exit_code, error["message"]) == (Code.FAILED, "no answer")
    advice = f"{dag['id']} is still in progress; continue waiting with `overnight dag show"
    assert error["hint"].startswith(advice)


def test_a_wait_that_times_out_lists_the_unfinished_graphs() -> None:
    shown = run("batch", "-", "--wait", "--wait-timeout", "1", stdin=f"{GRAPH}---\n{GRAPH}")

    assert shown.exit_code == Code.WAIT_TIMED_OUT
    for dag in read("dag", "list"):
        assert f"`overnight dag show {dag['id']} --watch`" in shown.stderr


def test_graphs_are_listed(api_user: ApiUser) -> None:
    dag = queued()
    settle(api_user, dag["tasks"]["research"])

    shown = run("dag", "list")

    _, line = shown.stdout.splitlines()
    assert line.startswith(f"{dag['id']}  running  1 of 3  $0.00 of $5.00")
    assert read("dag", "list", "--status", "failed") == []
    assert read("dag", "list")[0]["counts"]["completed"] == 1


def test_a_graph_is_shown_as_a_tree(api_user: ApiUser) -> None:
    dag = queued()
    settle(api_user, dag["tasks"]["research"])

    shown = run("dag", "show", dag["id"][-6:].lower())

    title, facts, *tree = shown.stdout.splitlines()
    assert title == "a page"
    assert facts == f"{dag['id']}  running, 1 of 3 ended, $0.00 of $5.00"
    first, second, third = (dag["tasks"][name][-8:] for name in ("research", "design", "build"))
    assert tree[0].split()[:-1] == ["└─", "✓", "research", first, "completed"]
    assert tree[1].split() == ["└─", "○", "design", second, "ready"]
    assert tree[2].split() == ["└─", "…", "build", third, "pending", "(also", "after", "research)"]


def test_a_shown_task_has_its_short_id_and_its_name() -> None:
    dag = queued()
    design = dag["tasks"]["design"]
    shown = run("dag", "show", dag["id"]).stdout.splitlines()
    [short] = [line.split()[3] for line in shown if " design " in line]

    assert read("get", short)["id"] == design
    assert read("get", f"{dag['id']}/design")["id"] == design
    assert read("get", f"{dag['id'][-6:]}/{short.lower()}")["id"] == design
    unknown = run("get", f"{dag['id']}/desing")
    assert "No task of the graph has the name 'desing'" in unknown.stderr


def test_a_watched_graph_ends_with_the_whole_tree(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = queued()
    names = iter(("research", "design", "build"))

    def step(_: float) -> None:
        settle(api_user, dag["tasks"][next(names)])

    # Nothing is held back, and the pause of a watcher lasts until the next task has ended.
    monkeypatch.setattr("overnight.client.calls.MAX_HOLD_SECONDS", 0)
    monkeypatch.setattr("overnight_server.cli.terminal.dag_tree.POLL_SECONDS", 0.01)
    monkeypatch.setattr("overnight.Client", lambda *_, **__: api_user.client(sleep=step))

    shown = run("dag", "show", dag["id"], "--watch")

    assert shown.exit_code == 0, shown.stderr
    assert shown.stderr.splitlines() == [
        *("research ready", "design pending", "build pending"),
        *("research completed", "design ready"),
        *("design completed", "build ready"),
        "build completed",
    ]
    assert "completed, 3 of 3 ended" in shown.stdout


@pytest.mark.parametrize("form", ["svg", "dot", "mermaid", "ascii"])
def test_a_graph_is_drawn(form: str, tmp_path: Path) -> None:
    dag = queued()
    target = tmp_path / "graph.out"

    shown = run("dag", "graph", dag["id"], "--format", form)
    kept = run("dag", "graph", dag["id"], "--format", form, "-o", str(target))

    assert kept.exit_code == shown.exit_code == 0, shown.stderr
    assert target.read_text(encoding="utf-8") == shown.stdout
    assert "research" in shown.stdout
    if form == "svg":
        assert ET.fromstring(shown.stdout).tag.endswith("svg")


@pytest.mark.parametrize(
    ("name", "form"), [("x.svg", "svg"), ("x.dot", "dot"), ("x.MMD", "mermaid"), ("x.txt", "ascii")]
)
def test_a_drawing_has_the_format_of_its_file_suffix(name: str, form: str, tmp_path: Path) -> None:
    dag = queued()

    kept = run("dag", "graph", dag["id"], "-o", name)

    assert kept.exit_code == 0, kept.stderr
    drawn = run("dag", "graph", dag["id"], "--format", form).stdout
    assert (tmp_path / name).read_text(encoding="utf-8") == drawn


def test_a_task_joins_a_graph_by_any_part_of_its_id() -> None:
    dag = queued()

    task = read("add", "one more", "--dag", dag["id"][-8:].lower())

    assert task["dag_id"] == dag["id"]


@pytest.mark.parametrize("name", ["nothing", "", "dag_01J8K0000000000000000000ZZ"])
def test_the_error_for_a_graph_that_cannot_be_joined_names_the_option(name: str) -> None:
    queued()

    refused = run("add", "one more", "--dag", name)

    assert refused.exit_code in (Code.FAILED, Code.USAGE)
    assert refused.stderr.startswith("Error: --dag: ")


def test_an_unknown_graph_is_reported_as_not_found() -> None:
    unknown = run("dag", "show", "dag_01J00000000000000000000000")
    short = run("dag", "show", "zz")

    assert unknown.exit_code == short.exit_code == Code.FAILED
    assert "no such graph" in unknown.stderr
    assert "No recent graph has an id that begins or ends with 'zz'" in short.stderr


def test_a_trigger_is_added_listed_and_removed(tmp_path: Path) -> None:
    dag = queued()
    (tmp_path / "tell.yaml").write_text("title: tell\ntasks: [{name: tell}]\n", encoding="utf-8")

    added = run("trigger", "add", dag["id"][-8:], "tell.yaml", "--when", "finished")
    listed = run("trigger", "list", "--dag", dag["id"])
    removed = run("trigger", "remove", added.stdout.strip()[-8:])

    assert added.stdout.startswith("trigger_"), added.stderr
    assert added.stderr == f"'tell' will be submitted when {dag['id']} is finished.\n"
    _, line = listed.stdout.splitlines()
    fields = [added.stdout.strip(), dag["id"], "finished", "waiting", "1", "tell"]
    assert line.split() == fields
    assert removed.stdout == f"{added.stdout.strip()} removed\n", removed.stderr
    assert read("trigger", "list")[0]["dropped_at"] is not None
    assert " removed " in run("trigger", "list").stdout


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        (GRAPH, ["--when", "ended"], "--when: 'ended' is not a condition"),
        (f"{GRAPH}---\n{GRAPH}", [], "stdin holds 2 graphs and 0 tasks"),
        ("title: alone\n", [], "stdin holds 0 graphs and 1 task"),
    ],
)
def test_a_trigger_with_an_invalid_graph_is_refused(
    text: str, arguments: list[str], expected: str
) -> None:
    dag = queued()

    shown = run("trigger", "add", dag["id"], "-", *arguments, stdin=text)

    assert shown.exit_code == Code.USAGE
    assert expected in shown.stderr
