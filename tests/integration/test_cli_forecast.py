"""The commands `overnight forecast`, `plan` and `fairness`."""

import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer import BadParameter
from typer.testing import CliRunner, Result

from overnight_server.cli.main import app
from overnight_server.cli.terminal import arguments
from overnight_server.cli.terminal.failures import Code
from tests.support.stub_service import ALPHA, KEY, Service, stub_service

AT = "2030-01-31T{:02}:00:00Z"
BATCH = [{"title": "a"}, {"title": "b"}]


@pytest.fixture
def service() -> Iterator[Service]:
    with stub_service() as served:
        yield served


@pytest.fixture(autouse=True)
def place(
    service: Service, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that points to this server and this database only."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OVERNIGHT_URL", service.url)
    monkeypatch.setenv("OVERNIGHT_API_KEY", KEY)
    monkeypatch.setenv("OVERNIGHT_DATABASE_URL", database_url)


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin, prog_name="overnight")


def band(first: int) -> dict[str, str]:
    return {name: AT.format(first + n) for n, name in enumerate(("p10_at", "p50_at", "p90_at"))}


def forecast_body(**fields: Any) -> dict[str, Any]:
    return {
        "id": ALPHA,
        "type": "echo",
        "state": "ready",
        "queue_position": 3,
        "start": band(1),
        "finish": band(4),
        "observed_runs": 0,
        "nights": 50,
        "made_at": AT.format(0),
        "notes": ["no run of type echo was seen yet"],
        **fields,
    }


def planned(**fields: Any) -> dict[str, Any]:
    step = {"title": "a", "type": "echo", "start": band(1), "finish": band(2)}
    return {
        "tasks": 2,
        "by_at": AT.format(7),
        "sure": 1,
        "likely": 2,
        "finish": band(3),
        "steps": [step, step],
        "nights": 50,
        "made_at": AT.format(0),
        "notes": [],
        **fields,
    }


def test_a_forecast_shows_median_bound_and_basis(service: Service) -> None:
    service.on(f"GET /api/v1/tasks/{ALPHA}/forecast", (200, forecast_body()))

    shown = run("forecast", ALPHA)

    assert shown.exit_code == 0, shown.stderr
    assert "start (median)   2030-01-31 02:00:00Z" in shown.stdout
    assert "end (90 % by)    2030-01-31 06:00:00Z" in shown.stdout
    assert "based on         0 earlier runs" in shown.stdout
    assert "Note: no run of type echo was seen yet." in shown.stderr


def test_a_forecast_without_a_task_lists_the_next_tasks(service: Service) -> None:
    service.on("GET /api/v1/tasks/forecast", (200, [forecast_body(), forecast_body(notes=[])]))

    listed = run("forecast")
    document = json.loads(run("forecast", "--json").stdout)

    assert len(listed.stdout.splitlines()) == 3
    assert document[0]["start"]["p50_at"] == AT.format(2)


def test_a_task_without_obstacles_starts_next(service: Service) -> None:
    fields = {
        "id": ALPHA,
        "state": "ready",
        "queue_position": 1,
        "starts_next": True,
        "reasons": [],
    }
    service.on(f"GET /api/v1/tasks/{ALPHA}/explain", (200, fields | {"made_at": AT.format(0)}))

    shown = run("explain", ALPHA)
    document = json.loads(run("explain", ALPHA, "--json").stdout)

    assert shown.exit_code == 0, shown.stderr
    assert (
        shown.stdout.splitlines()[-1]
        == "Nothing keeps it from starting; the dispatcher will claim it next."
    )
    assert document["starts_next"] is True


def test_a_plan_reports_in_one_line_how_many_tasks_finish_in_time(
    service: Service, tmp_path: Path
) -> None:
    service.on("POST /api/v1/plan", (200, planned()))
    (tmp_path / "batch.json").write_text(json.dumps({"tasks": BATCH, "edges": [[0, 1]]}))

    shown = run("plan", "batch.json", "--by", "2030-01-31T07:00Z")

    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.splitlines()[-1] == (
        "1 of 2 will have ended by 2030-01-31 07:00:00Z with 90 % certainty, 2 with 50 %."
    )


def test_a_plan_without_an_instant_reports_when_all_tasks_finish(service: Service) -> None:
    service.on("POST /api/v1/plan", (200, planned(by_at=None, sure=None, likely=None)))

    shown = run("plan", "-", stdin=json.dumps(BATCH))

    assert shown.stdout.splitlines()[-1] == (
        "All 2 tasks will probably have ended by 2030-01-31 04:00:00Z,"
        " with 90 % certainty by 2030-01-31 05:00:00Z."
    )


@pytest.mark.parametrize(
    "text",
    [
        "title: a page\ntasks:\n  - {name: a}\n  - {name: b, after: [a]}\n",
        '{"title": "a page", "tasks": [{"name": "a"}, {"name": "b", "after": ["a"]}]}',
    ],
)
def test_a_plan_takes_the_files_that_a_batch_takes(service: Service, text: str) -> None:
    service.on("POST /api/v1/dags/plan", (200, planned()))

    shown = run("plan", "-", stdin=text)
    document = json.loads(run("plan", "-", "--json", stdin=text).stdout)

    assert shown.exit_code == 0, shown.stderr
    assert "1 of 2 will have ended by" in shown.stdout
    assert (document["title"], document["tasks"]) == ("a page", 2)


def test_every_part_of_a_file_is_planned(service: Service) -> None:
    service.on("POST /api/v1/dags/plan", (200, planned()))
    service.on("POST /api/v1/plan", (200, planned(tasks=1)))
    text = "- title: a\n- {title: a page, tasks: [{name: a}]}\n"

    shown = run("plan", "-", stdin=text).stdout.splitlines()
    documents = json.loads(run("plan", "-", "--json", stdin=text).stdout)

    assert {"a page:", "stdin, single tasks:"} <= set(shown)
    assert [entry["title"] for entry in documents] == ["a page", "stdin, single tasks"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("no JSON", "is neither a task nor a graph"),
        ("{}", "title: is missing"),
        ('"a"', "is neither a task nor a graph"),
        ("[1]", "0: is neither a task nor a graph"),
        ('{"tasks": [{"name": "a"}]}', "stdin:1: title: is missing"),
        ('{"tasks": [1]}', "The batch is neither"),
        ('{"tasks": [], "edges": [1]}', "The batch is neither"),
    ],
)
def test_an_invalid_batch_is_a_usage_error(value: str, expected: str) -> None:
    refused = run("plan", "-", stdin=value)

    assert refused.exit_code == Code.USAGE
    assert expected in refused.stderr


def test_an_instant_is_a_time_of_day_or_a_full_timestamp() -> None:
    now = datetime.now().astimezone()

    assert 0 < (arguments.instant("07:00") - now).total_seconds() <= 25 * 3600
    assert arguments.instant("2030-01-31T07:00Z").isoformat().startswith("2030-01-3")
    with pytest.raises(BadParameter, match="not an instant"):
        arguments.instant("tomorrow")
