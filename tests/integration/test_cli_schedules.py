"""`overnight schedule`: create, list, show, pause, run, backfill, delete and import schedules."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overnight_server.cli.commands.schedules import local_zone
from overnight_server.cli.terminal.failures import Code
from overnight_server.maintenance.schedules import fire_schedules
from tests.support.api_user import ApiUser, serve_api
from tests.support.command import run
from tests.support.deployment import Deployment
from tests.support.receivers import http_receiver
from tests.support.schedules import SETTINGS, at, submitted

NOON = at("2026-07-01T12:00Z")
WEEKDAYS = "every weekday at 22:00"
SCHEDULER_YAML = """\
director_url: {url}
agent_url: https://localhost:9000
jobs:
  - name: nightly-maintenance
    schedule: "0 1 * * *"
    prompt: |
      Perform nightly maintenance
      of {{{{ everything }}}}
    model: sonnet
    timeout_seconds: 1800
  - name: weekly-audit
    schedule: "0 9 * * 1"
    prompt: Audit dependencies
    agent_url: https://localhost:9001
    enabled: false
"""


@pytest.fixture
def user(
    deployment: Deployment,
    database_url: str,
    empty_environment: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url) as api_user:
        deployment.set_clock(NOON)
        api_user.take_commands(monkeypatch)
        monkeypatch.setenv("TZ", "Europe/Berlin")
        yield api_user


def read(*arguments: str) -> Any:
    shown = run("schedule", *arguments, "--json")
    assert shown.exit_code == 0, shown.stderr
    return json.loads(shown.stdout)


def sweep(user: ApiUser, now: str) -> None:
    user.deployment.set_clock(at(now))
    fire_schedules(user.deployment.dispatcher, SETTINGS)


def test_a_schedule_is_added_in_plain_words(user: ApiUser) -> None:
    added = run("schedule", "add", WEEKDAYS, "Nightly report", "--tag", "night")

    assert added.stdout == "nightly-report\n", added.stderr
    assert "At 22:00 on Monday through Friday, Europe/Berlin time" in added.stderr
    assert "  Wed 1 Jul 2026, 22:00 CEST" in added.stderr
    [schedule] = read("list")
    assert (schedule["name"], schedule["zone"]) == ("nightly-report", "Europe/Berlin")
    assert schedule["task"] == {"title": "Nightly report", "tags": ["night"]}
    sweep(user, "2026-07-01T20:00Z")
    assert [task["title"] for task in submitted(user.deployment)] == ["Nightly report"]
    listed = run("schedule", "list").stdout
    assert "queued" in listed
    shown = run("schedule", "get", "nightly-report").stdout
    assert "Thu 2 Jul 2026, 22:00 CEST" in shown
    assert "queued" in shown


def test_a_dry_run_prints_the_next_times_and_creates_nothing(user: ApiUser) -> None:
    shown = run("schedule", "add", "0 22 * * 1-5", "x", "--zone", "UTC", "--dry-run")

    assert shown.stdout.splitlines() == [
        "At 22:00 on Monday through Friday, UTC time",
        "Wed 1 Jul 2026, 22:00 UTC",
        "Thu 2 Jul 2026, 22:00 UTC",
        "Fri 3 Jul 2026, 22:00 UTC",
        "Mon 6 Jul 2026, 22:00 UTC",
        "Tue 7 Jul 2026, 22:00 UTC",
    ]
    assert read("list") == []
    assert "No schedules." in run("schedule", "list").stderr


def test_a_time_that_is_not_understood_is_refused_with_examples(user: ApiUser) -> None:
    shown = run("schedule", "add", "when pigs fly", "x")

    assert shown.exit_code != 0
    assert "when pigs fly" in shown.stderr
    assert "every weekday at 22:00" in shown.stderr


def test_a_graph_of_a_file_is_scheduled(user: ApiUser, tmp_path: Path) -> None:
    (tmp_path / "night.yaml").write_text(
        "title: Night of {{ fire_date }}\n"
        "tasks:\n"
        "  - {name: load}\n"
        "  - {name: mail, after: [load]}\n",
        encoding="utf-8",
    )

    added = run("schedule", "add", WEEKDAYS, "--file", str(tmp_path / "night.yaml"))

    assert added.exit_code == 0, added.stderr
    [schedule] = read("list")
    assert schedule["graph"]["title"] == "Night of {{ fire_date }}"


def test_a_schedule_is_paused_resumed_run_and_removed(user: ApiUser) -> None:
    run("schedule", "add", WEEKDAYS, "x", "--name", "nightly")
    whole = read("get", "nightly")["id"]

    assert run("schedule", "pause", "nightly").stdout.startswith("nightly paused")
    assert run("schedule", "resume", whole).stdout.startswith("nightly active")
    assert run("schedule", "resume", whole[-8:]).exit_code == 0
    assert run("schedule", "run", "nightly").stdout.startswith("task_")
    assert [fire["kind"] for fire in read("get", "nightly")["fires"]] == ["manual"]
    assert run("schedule", "rm", "nightly", "--yes").stdout == "nightly deleted\n"
    assert run("schedule", "get", "nightly").exit_code != 0


def test_a_range_is_backfilled_after_a_preview(user: ApiUser) -> None:
    run("schedule", "add", "every day at 22:00", "x", "--name", "nightly", "--zone", "UTC")
    span = ("--since", "2026-06-29T00:00Z", "--until", "2026-07-01T00:00Z")

    preview = run("schedule", "backfill", "nightly", *span, "--preview")
    done = run("schedule", "backfill", "nightly", *span)

    assert preview.stdout.splitlines() == [
        "Mon 29 Jun 2026, 22:00 UTC",
        "Tue 30 Jun 2026, 22:00 UTC",
    ]
    assert "2 of 2 fire times would run" in preview.stderr
    assert "2 of 2 fire times will run" in done.stderr


def test_the_jobs_of_a_scheduler_are_imported(user: ApiUser, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(SCHEDULER_YAML.format(url=user.http.base_url), encoding="utf-8")

    first = run("schedule", "import", str(file))
    again = run("schedule", "import", str(file))

    assert first.stdout == "nightly-maintenance created\nweekly-audit created\n", first.stderr
    assert again.stdout == "nightly-maintenance changed\nweekly-audit changed\n"
    assert "agent_url is ignored" in first.stderr
    assert "jobs.1.agent_url is ignored" in first.stderr
    nightly, weekly = read("list")
    assert (nightly["cron"], nightly["state"], weekly["state"]) == ("0 1 * * *", "active", "paused")
    sweep(user, "2026-07-02T01:00Z")
    [task] = submitted(user.deployment)
    assert task["title"] == "Perform nightly maintenance"
    assert "of {{ everything }}" in task["spec"]["prompt"]
    assert (task["spec"]["model"], task["timeout_seconds"]) == ("sonnet", 1800)
    assert (task["spec"]["source_job"], task["created_by"]) == (
        "nightly-maintenance",
        "cron:nightly-maintenance",
    )


def test_schedules_of_our_own_form_are_imported_and_previewed(
    user: ApiUser, tmp_path: Path
) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(
        "schedules:\n"
        "  - name: nightly\n"
        "    when: every day at 22:00\n"
        "    task: {title: 'report {{ fire_date }}'}\n",
        encoding="utf-8",
    )

    shown = run("schedule", "import", str(file), "--dry-run")
    run("schedule", "import", str(file))

    assert shown.stdout.startswith("nightly would fire at Wed 1 Jul 2026, 22:00 UTC, Thu 2 Jul")
    assert [schedule["name"] for schedule in read("list")] == ["nightly"]


def test_a_repeated_import_moves_no_fire_time(user: ApiUser, tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(
        "schedules:\n"
        "  - {name: often, when: every 90 minutes, task: {title: a}}\n"
        "  - {name: once, when: in 2 hours, task: {title: b}}\n",
        encoding="utf-8",
    )
    run("schedule", "import", str(file))
    times = [schedule["next_fire_at"] for schedule in read("list")]

    user.deployment.set_clock(at("2026-07-01T12:40Z"))
    run("schedule", "import", str(file))
    assert [schedule["next_fire_at"] for schedule in read("list")] == times
    sweep(user, "2026-07-01T14:10Z")
    last = run("schedule", "import", str(file))

    assert "once has fired for the last time; nothing was changed" in last.stdout, last.stderr
    sweep(user, "2026-07-02T14:10Z")
    assert [task["title"] for task in submitted(user.deployment)].count("b") == 1


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_file_cannot_name_the_server_that_gets_the_key(
    user: ApiUser, tmp_path: Path, options: list[str]
) -> None:
    with http_receiver() as receiver:
        file = tmp_path / "scheduler.yaml"
        file.write_text(SCHEDULER_YAML.format(url=receiver.url("")), encoding="utf-8")

        refused = run("schedule", "import", str(file), *options)

    assert refused.exit_code == Code.USAGE
    assert receiver.url("") in refused.stderr
    assert f"--url {user.http.base_url}" in refused.stderr
    assert receiver.requests == []
    assert read("list") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jobs: [{name: a, schedule: '* * * * *'}]", "jobs.0.prompt is missing"),
        ("jobs: [{name: a, cron: x, prompt: p, colour: red}]", "unknown fields: colour"),
        ("schedules: []", "holds no schedule"),
        ("just text", "must be an object with schedules or jobs"),
        ("a: [", "schedules.yaml:2: "),
    ],
)
def test_a_file_without_schedules_is_refused(
    user: ApiUser, tmp_path: Path, text: str, expected: str
) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(text, encoding="utf-8")

    shown = run("schedule", "import", str(file))

    assert shown.exit_code == Code.USAGE
    assert expected in shown.stderr
    assert read("list") == []


def test_a_schedule_needs_a_title_or_a_file(user: ApiUser) -> None:
    shown = run("schedule", "add", WEEKDAYS)

    assert shown.exit_code == Code.USAGE
    assert "TITLE is missing" in shown.stderr


def test_the_zone_of_the_machine_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    assert local_zone() == "America/New_York"
    monkeypatch.setenv("TZ", "Nowhere")
    assert local_zone() == "UTC"
