"""Batch files: their content, and errors that name line and field."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from overnight.models.dags import DagCreate
from overnight.models.tasks import TaskCreate
from overnight_server.cli.commands.batch_files import MOST_VALUES, Unreadable, entries, read, schema

GRAPH = """\
title: a page
tasks:
  - name: research
    type: echo
  - name: build
    after:
      - research
"""


def kinds(text: str) -> list[str]:
    parsed, wrong = entries(read(text))
    assert not wrong, [fault.line_text("file") for fault in wrong]
    return [f"{type(entry.content).__name__} {entry.content.title}" for entry in parsed]


def faults(text: str) -> list[str]:
    _, wrong = entries(read(text))
    return [fault.line_text("f.yaml") for fault in wrong]


@pytest.mark.parametrize(
    ("text", "held"),
    [
        (GRAPH, ["DagCreate a page"]),
        ("title: alone\n", ["TaskCreate alone"]),
        ("- title: one\n- title: two\n", ["TaskCreate one", "TaskCreate two"]),
        (
            "- title: one\n- title: g\n  tasks:\n  - name: a\n",
            ["TaskCreate one", "DagCreate g"],
        ),
        (
            "dags:\n- title: g\n  tasks:\n  - name: a\ntasks:\n- title: one\n",
            ["DagCreate g", "TaskCreate one"],
        ),
        (f"{GRAPH}---\ntitle: alone\n---\n", ["DagCreate a page", "TaskCreate alone"]),
        ('{"title": "g", "tasks": [{"name": "a"}]}', ["DagCreate g"]),
        ('[\n\t{"title": "tabs"}\n]', ["TaskCreate tabs"]),
        ("[{title: flow}]", ["TaskCreate flow"]),
    ],
)
def test_a_file_holds_graphs_and_tasks_in_their_order(text: str, held: list[str]) -> None:
    assert kinds(text) == held


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            GRAPH.replace("- research", "- reserch"),
            "f.yaml:7: tasks.1.after.0: no task of this graph is called 'reserch'; did you mean",
        ),
        (
            GRAPH.replace("- research", "- build"),
            "f.yaml:7: tasks.1.after.0: Would create circular dependency: build → build (allowed: ",
        ),
        (
            GRAPH.replace("type: echo", "priority: 9"),
            "f.yaml:4: tasks.0.priority: is too large (allowed: a whole",
        ),
        (
            "title: g\ntasks: []\n",
            "f.yaml:2: tasks: is empty (allowed: a list of 1 to 100000, each a JSON object)",
        ),
        ("- title: a\n- priority: 1\n", "f.yaml:2: 1.title: is missing"),
        ("- 7\n", "f.yaml:1: 0: is neither a task nor a graph (allowed: an object with a title)"),
        ("dags: 7\n", "f.yaml:1: dags: is not a list (allowed: a list)"),
        (
            "dags: []\nodd: 1\n",
            "f.yaml:2: odd: is not a known field (allowed: dags and tasks)",
        ),
        ("dags: [{title: x}]\n", "f.yaml:1: dags.0.tasks: is missing"),
        ("", "f.yaml: holds no task (allowed: a graph, or a list of tasks)"),
        ('{\n "title": "x",\n "priority": 7}', "f.yaml:3: priority: is too large"),
    ],
)
def test_an_error_names_its_line_and_field(text: str, expected: str) -> None:
    [fault] = faults(text)

    assert fault.startswith(expected)


def test_every_error_of_a_file_is_reported() -> None:
    text = "- title: a\n  priority: 9\n- title: b\n  odd: 1\n"

    assert [fault.partition(": ")[0] for fault in faults(text)] == ["f.yaml:2", "f.yaml:4"]


def test_wrong_fields_and_a_wrong_graph_are_reported_together() -> None:
    text = (
        "title: g\ntasks:\n- name: a\n  priority: 9\n- name: b\n  after: aa\n"
        "- name: c\n  after: [7]\n- name: a\n"
    )

    messages = [fault.partition(" (allowed")[0] for fault in faults(text)]

    assert messages == [
        "f.yaml:4: tasks.0.priority: is too large",
        "f.yaml:6: tasks.1.after.0: no task of this graph is called 'aa'; did you mean 'a'?",
        "f.yaml:8: tasks.2.after.0: is not a JSON object",
        "f.yaml:9: tasks.3.name: 'a' is the name of tasks.0 already",
    ]


@pytest.mark.parametrize("after", ["a", "[a]", "{task: a, condition: success}"])
def test_a_single_dependency_needs_no_list(after: str) -> None:
    [entry], wrong = entries(read(f"title: g\ntasks:\n- name: a\n- name: b\n  after: {after}\n"))

    assert not wrong
    assert isinstance(entry.content, DagCreate)
    assert [task.task for task in entry.content.tasks[1].after] == ["a"]


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("title: a\ntitle: b\n", 2, "'title' is given twice"),
        ("title: [a\n", 2, "neither YAML nor JSON"),
        ("title: !!python/object:os.system x\n", 1, "the tag"),
        ("title: !secret x\n", 1, "the tag"),
        ("? [a]\n: b\n", 1, "a key must be a string"),
        ("<<: 7\n", 1, "<< needs an object"),
        ("a: &a [*a]\n", 1, "64 levels"),
        ("\x07", None, "neither YAML nor JSON"),
        (f"n: {'9' * 5000}\n", 1, "too many digits"),
        ('{"a": NaN}', None, "NaN is not a JSON number"),
        ("[" * 3000, None, "neither|levels"),
        ("[" * 200_000, 1, "64 levels"),
        ("- " * 200_000, 1, "64 levels"),
        (f'{{"n": {"9" * 5000}}}', 1, "too many digits"),
        ('{"title": "a", "title": "b"}', None, "'title' is given twice"),
        ('[{"title": "g", "tasks": [{"name": "a", "name": "b"}]}]', None, "'name' is given twice"),
        ("title: a\ntimeout_seconds: !!int soon\n", 2, "'soon' is not a number"),
        ("title: a\nmax_cost_usd: !!float much\n", 2, "'much' is not a number"),
    ],
)
def test_an_invalid_batch_is_reported_with_its_line(
    text: str, line: int | None, expected: str
) -> None:
    with pytest.raises(Unreadable, match=expected) as refused:
        entries(read(text))

    if line is not None:
        assert refused.value.line == line


def test_nested_yaml_aliases_cannot_exceed_the_maximum_of_values() -> None:
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
    )
    assert MOST_VALUES < 10**12

    with pytest.raises(Unreadable, match="1000000 values"):
        read(laughs)


def test_yaml_is_read_with_the_types_of_json() -> None:
    text = (
        "title: yes\ndescription: 2030-01-31\npayload: {on: off, n: 010, x: 1_000, t: 12:30:45,"
        " f: 1e3, b: true, z: null, h: '7'}\n"
    )

    [entry], _ = entries(read(text))

    assert isinstance(entry.content, TaskCreate)
    assert (entry.content.title, entry.content.description) == ("yes", "2030-01-31")
    assert entry.content.payload == {
        "on": "off",
        "n": 10,
        "x": "1_000",
        "t": "12:30:45",
        "f": 1000.0,
        "b": True,
        "z": None,
        "h": "7",
    }


def test_yaml_anchors_share_fields_between_tasks() -> None:
    text = (
        "title: shared\ntasks:\n  - &usual {name: a, type: code, timeout_seconds: 60}\n"
        "  - {<<: *usual, name: b, after: [a]}\n"
    )

    [entry], wrong = entries(read(text))

    assert not wrong
    assert isinstance(entry.content, DagCreate)
    assert [(task.name, task.type, task.timeout_seconds) for task in entry.content.tasks] == [
        ("a", "code", 60),
        ("b", "code", 60),
    ]


def test_the_default_source_is_the_command_line() -> None:
    parsed, _ = entries(read(f"{GRAPH}---\n- title: a\n- title: b\n  source: web\n"))

    [graph, first, second] = [entry.content for entry in parsed]
    assert isinstance(graph, DagCreate)
    assert {task.source for task in graph.tasks} == {"cli"}
    assert [item.source for item in (first, second) if isinstance(item, TaskCreate)] == [
        "cli",
        "web",
    ]


def test_the_schema_describes_the_accepted_files() -> None:
    described: dict[str, Any] = json.loads(json.dumps(schema()))

    assert {"DagCreate", "DagTask", "TaskCreate", "After"} <= described["$defs"].keys()
    references = {
        one["$ref"].rpartition("/")[2]: one for one in described["anyOf"] if "$ref" in one
    }
    assert references.keys() == {"DagCreate", "TaskCreate"}
    assert set(described["$defs"]["DagCreate"]["properties"]) == set(DagCreate.model_fields)


@pytest.mark.parametrize("field", ["start_at", "deadline_at"])
def test_a_time_of_day_and_a_duration_are_read_as_instants(field: str) -> None:
    text = f"- {{title: a, {field}: '02:00'}}\n- {{title: b, {field}: 3h}}\n"
    before = datetime.now().astimezone()

    [first, second], faults = entries(read(text))

    assert faults == []
    clock, later = (getattr(entry.content, field).astimezone() for entry in (first, second))
    assert (clock.hour, clock.minute) == (2, 0)
    assert clock > before
    assert later >= before + timedelta(hours=3)


def test_an_instant_that_is_none_is_a_fault() -> None:
    _, [fault] = entries(read("title: a\nstart_at: soon\n"))

    assert (fault.line, fault.field) == (2, "start_at")
