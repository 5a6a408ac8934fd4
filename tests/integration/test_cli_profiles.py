"""Profiles, shell completion and JSON lines of the user commands."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from overnight_server.cli.commands.completion import task_ids
from overnight_server.cli.main import app
from overnight_server.cli.terminal.failures import Code
from tests.rules.sources import ROOT
from tests.support.stub_service import ALPHA, BETA, Service, problem, stub_service, task

ROUTE = "GET /api/v1/tasks"


@pytest.fixture
def service() -> Iterator[Service]:
    with stub_service() as served:
        served.on(ROUTE, (200, [task(ALPHA), task(BETA, "completed", title="a\nb")]))
        yield served


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place without settings, with a configuration directory of its own."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, prog_name="overnight")


def add_profile(service: Service, name: str, key: str, *more: str) -> None:
    file = Path(f"{name}.key").absolute()
    file.write_text(f"{key}\n", encoding="utf-8")
    added = run("profile", "add", name, "--url", service.url, "--api-key-file", str(file), *more)
    assert added.exit_code == 0, added.output


def test_a_profile_holds_address_and_key(service: Service) -> None:
    add_profile(service, "work", "work-key")
    add_profile(service, "home", "home-key")

    listed = run("list", "--profile", "home", "--json")

    assert listed.exit_code == 0, listed.output
    assert service.keys == {"home-key"}


def test_the_default_profile_is_used_without_other_settings(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_profile(service, "work", "work-key", "--default")
    add_profile(service, "home", "home-key")

    assert run("list").exit_code == 0
    monkeypatch.setenv("OVERNIGHT_PROFILE", "home")
    assert run("list").exit_code == 0

    assert service.keys == {"work-key", "home-key"}
    rows = json.loads(run("profile", "list", "--json").stdout)
    assert [(row["name"], row["default"]) for row in rows] == [("work", True), ("home", False)]


def test_an_address_in_the_environment_comes_before_the_default_profile(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_profile(service, "work", "work-key", "--default")
    monkeypatch.setenv("OVERNIGHT_URL", service.url)
    monkeypatch.setenv("OVERNIGHT_API_KEY", "from-the-environment")

    assert run("list").exit_code == 0
    assert service.keys == {"from-the-environment"}
    assert run("list", "--profile", "work").exit_code == 0
    assert service.keys == {"from-the-environment", "work-key"}


def test_a_refused_key_is_reported_with_its_profile(service: Service) -> None:
    add_profile(service, "work", "work-key", "--default")
    service.on(ROUTE, problem(401, "UNAUTHENTICATED", "show a valid API key"))

    refused = run("list")

    assert refused.exit_code == Code.NOT_AUTHENTICATED
    assert "work.key, the file of profile 'work'." in refused.stderr


def test_the_error_for_an_unknown_profile_lists_the_existing_ones(service: Service) -> None:
    add_profile(service, "work", "work-key")

    refused = run("list", "--profile", "wrok")

    assert refused.exit_code == Code.USAGE
    assert "'wrok'" in refused.stderr
    assert "known are work" in refused.stderr


@pytest.mark.parametrize("text", ["[work", 'work = "x"', "[work]\nkey = 1"])
def test_a_malformed_profile_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config" / "overnight" / "profiles.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")

    refused = run("list")

    assert refused.exit_code == Code.USAGE
    assert "profiles.toml" in refused.stderr


@pytest.mark.parametrize("name", ["default", "a b", ""])
def test_an_invalid_profile_name_is_refused(name: str) -> None:
    assert run("profile", "add", name, "--url", "http://x").exit_code == Code.USAGE


def test_a_key_file_is_stored_as_an_absolute_path(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work.key").write_text("work-key\n", encoding="utf-8")
    options = ("--url", service.url, "--api-key-file", "work.key", "--default")
    assert run("profile", "add", "work", *options).exit_code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert run("list").exit_code == 0
    assert service.keys == {"work-key"}


@pytest.mark.parametrize("url", ["nourl", "ftp://x", "https://", "http://[::1", ""])
def test_an_invalid_address_is_not_stored(url: str) -> None:
    refused = run("profile", "add", "work", "--url", url)

    assert refused.exit_code == Code.USAGE
    assert f"--url: {url!r} is not an address" in refused.stderr
    assert "https://overnight.example" in refused.stderr
    assert json.loads(run("profile", "list", "--json").stdout) == []


@pytest.mark.parametrize("holds", [None, "  \n"])
def test_a_key_file_without_a_key_is_not_stored(holds: str | None) -> None:
    if holds is not None:
        Path("work.key").write_text(holds, encoding="utf-8")

    refused = run("profile", "add", "work", "--url", "http://x", "--api-key-file", "work.key")

    assert refused.exit_code == Code.USAGE
    assert refused.stderr.startswith("Error: --api-key-file: ")
    assert "work.key" in refused.stderr


def test_removing_the_default_profile_unsets_the_default(service: Service) -> None:
    add_profile(service, "work", "work-key", "--default")
    add_profile(service, "home", "home-key")

    assert run("profile", "remove", "work").stdout == "Removed profile work.\n"

    [left] = json.loads(run("profile", "list", "--json").stdout)
    assert (left["name"], left["default"]) == ("home", False)
    assert run("list").exit_code == Code.FAILED
    refused = run("profile", "remove", "work")
    assert (refused.exit_code, "Existing profiles: home." in refused.stderr) == (Code.USAGE, True)


def test_the_default_profile_is_set_shown_and_unset(service: Service) -> None:
    add_profile(service, "work", "work-key")

    assert run("profile", "default").stdout == ""
    assert run("profile", "default", "work").stdout == "work\n"
    assert run("profile", "default").stdout == "work\n"
    assert run("profile", "default", "wrok").exit_code == Code.USAGE
    assert run("profile", "default", "work", "--unset").exit_code == Code.USAGE
    assert run("profile", "default", "--unset").stderr == "No default profile is set.\n"
    assert run("profile", "default").stdout == ""


def test_jsonl_has_one_item_per_line(service: Service) -> None:
    add_profile(service, "work", "k", "--default")

    listed = run("list", "--jsonl").stdout.splitlines()
    profiles = run("profile", "list", "--jsonl").stdout.splitlines()

    assert [json.loads(line)["id"] for line in listed] == [ALPHA, BETA]
    assert [json.loads(line)["name"] for line in profiles] == ["work"]
    assert run("profile", "list", "--json", "--jsonl").exit_code == Code.USAGE


def test_jsonl_of_a_single_object_is_one_line(service: Service) -> None:
    add_profile(service, "work", "k", "--default")
    service.on(f"GET /api/v1/tasks/{ALPHA}", (200, task(ALPHA)))

    [line] = run("get", ALPHA, "--jsonl").stdout.splitlines()

    assert json.loads(line)["id"] == ALPHA


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_completion_script(shell: str) -> None:
    shown = run("completion", shell)

    assert shown.exit_code == 0
    assert "_OVERNIGHT_COMPLETE" in shown.stdout
    assert "complete" in shown.stdout


def test_an_unknown_shell_is_refused() -> None:
    assert run("completion", "tcsh").exit_code == Code.USAGE


def test_task_ids_are_completed_with_their_titles(service: Service) -> None:
    add_profile(service, "work", "k", "--default")

    assert task_ids("") == [(ALPHA, "ready: say hello"), (BETA, "completed: a\\nb")]
    assert [name for name, _ in task_ids(BETA[:-1])] == [BETA]
    assert task_ids("nothing") == []


def test_the_shell_completes_the_ids_of_tasks(service: Service) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "overnight_server.cli.main"],
        check=False,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OVERNIGHT_URL": service.url,
            "OVERNIGHT_API_KEY": "k",
            "_OVERNIGHT_COMPLETE": "complete_bash",
            "COMP_WORDS": "overnight wait task_01J8K0000000000000000000B",
            "COMP_CWORD": "2",
        },
    )

    assert completed.stdout.split() == [BETA]


def test_without_a_server_completion_prints_nothing() -> None:
    assert task_ids("") == []
