"""The command tree: its help, its reference page, its manners when misused."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from overnight_server.cli import reference
from overnight_server.cli.commands import processes
from overnight_server.cli.main import app
from overnight_server.cli.terminal.failures import Code
from overnight_server.settings import load

OVERNIGHT = Path(sys.executable).with_name("overnight")
HEAVY = {"alembic", "celery", "fastapi", "httpx2", "kombu", "pydantic", "redis", "sqlalchemy"}


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, arguments, env=environment, prog_name="overnight")


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place without settings and without a deployment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
        monkeypatch.delenv(name)


def paths() -> Iterator[list[str]]:
    """Every command and group that is shown."""
    root = get_command(app)
    yield []
    for name, command in getattr(root, "commands", {}).items():
        yield [name]
        for inner in getattr(command, "commands", {}):
            yield [name, inner]


@pytest.mark.parametrize("path", list(paths()), ids=" ".join)
def test_every_command_has_help(path: list[str]) -> None:
    shown = run(*path, "--help")

    assert shown.exit_code == 0
    assert "Usage: overnight" in shown.stdout
    assert "<bool>" not in shown.stdout, "a flag takes no value"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("pause", "ada"), "The command takes only options: --user, --pool, --all, --me, --note"),
        (("window", "22:00", "06:00"), "The command takes only options: --zone, --from, --to"),
    ],
)
def test_an_argument_of_a_command_without_arguments_is_answered_with_its_options(
    arguments: tuple[str, ...], expected: str
) -> None:
    refused = run(*arguments)

    assert refused.exit_code == Code.USAGE
    assert expected in refused.stderr
    assert "--url" not in refused.stderr


def test_overnight_alone_shows_its_help() -> None:
    shown = run()

    assert shown.exit_code == 0
    assert "Queue work before bed" in shown.stdout


def test_the_reference_page_is_the_generated_one() -> None:
    written = reference.PAGE.read_text(encoding="utf-8")

    assert written == reference.page(), (
        "write it again with `python -m overnight_server.cli.reference`"
    )


def test_the_reference_page_names_every_exit_code() -> None:
    assert all(f"| {code.value} | " in reference.PREFACE for code in Code)


def test_help_and_completion_load_nothing_heavy() -> None:
    asked = (
        "import sys, overnight_server.cli.main as m;"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", asked], check=True, capture_output=True, text=True
    ).stdout.split()

    assert HEAVY.isdisjoint(loaded)
    assert "typer" in loaded


def test_the_shell_completes_commands() -> None:
    completed = subprocess.run(
        [OVERNIGHT],
        check=False,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "_OVERNIGHT_COMPLETE": "complete_bash",
            "COMP_WORDS": "overnight queue-s",
            "COMP_CWORD": "1",
        },
    )

    assert completed.stdout.split() == ["queue-status"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ad"], "Did you mean 'add'"),
        (["--nope"], "No such option"),
        (["add"], "Missing argument 'TITLE'"),
        (["add", "x", "--priority", "5"], "--priority"),
        (["add", "x", "--timeout", "soon"], "is not a duration"),
        (["add", "x", "--payload", "[]"], "JSON object"),
        (["add", "x", "--retry", "never"], "--retry"),
        (["add", "x", "--priority", "1", "--priority-score", "2"], "cannot be used together"),
        (["sweep"], "Missing argument 'NAME'"),
    ],
)
def test_wrong_usage_prints_one_line_and_exits_2(arguments: list[str], expected: str) -> None:
    refused = run(*arguments)

    assert refused.exit_code == Code.USAGE
    assert refused.stdout == ""
    first, *rest = refused.stderr.splitlines()
    assert first.startswith("Error: ")
    assert expected in first
    assert len(rest) <= 1


def test_wrong_usage_is_reported_as_json() -> None:
    refused = run("list", "--json", "--jsonl")

    assert refused.exit_code == Code.USAGE
    assert json.loads(refused.stderr)["error"] == {
        "code": "USAGE",
        "message": "--json and --jsonl cannot be used together",
        "hint": None,
    }


def test_a_wrong_setting_is_reported_like_a_wrong_option() -> None:
    refused = run("list", OVERNIGHT_POLL_INTERVAL="soon", OVERNIGHT_POOOL="x")

    assert refused.exit_code == Code.USAGE
    [line] = refused.stderr.splitlines()
    assert "OVERNIGHT_POLL_INTERVAL=soon" in line
    assert "OVERNIGHT_POOL" in line


def test_without_a_server_the_advice_is_to_start_one() -> None:
    refused = run("list")

    assert refused.exit_code == Code.FAILED
    assert "overnight up" in refused.stderr


def test_without_a_key_the_exit_code_is_4() -> None:
    refused = run("list", "--url", "http://127.0.0.1:9")

    assert refused.exit_code == Code.NOT_AUTHENTICATED
    assert "OVERNIGHT_API_KEY" in refused.stderr


@pytest.mark.parametrize("arguments", [["migrate"], ["worker"], ["api"], ["beat"]])
def test_without_a_database_the_advice_is_how_to_name_one(arguments: list[str]) -> None:
    refused = run(*arguments)

    assert refused.exit_code == Code.FAILED
    assert "OVERNIGHT_DATABASE_URL" in refused.stderr


def test_flower_is_never_started_without_a_password() -> None:
    refused = run(
        "flower",
        OVERNIGHT_DATABASE_URL="postgresql://127.0.0.1:9/x",
        OVERNIGHT_REDIS_URL="redis://127.0.0.1:9",
    )

    assert refused.exit_code == Code.USAGE
    assert "OVERNIGHT_FLOWER_PASSWORD" in refused.stderr


def test_a_worker_process_gets_its_pool_and_its_size() -> None:
    settings = load({"OVERNIGHT_POOL": "gpu", "OVERNIGHT_CONCURRENCY": "3"})

    arguments = processes.worker_arguments(settings)

    assert arguments[0] == "worker"
    assert arguments[arguments.index("-Q") + 1] == "agents.gpu"
    assert arguments[arguments.index("-c") + 1] == "3"


def test_no_process_gets_a_secret_as_an_argument() -> None:
    settings = load(
        {
            "OVERNIGHT_REDIS_URL": "redis://:hidden@127.0.0.1:9",
            "OVERNIGHT_FLOWER_PASSWORD": "hidden",
        }
    )

    arguments = [
        *processes.worker_arguments(settings),
        *processes.maintenance_arguments(),
        *processes.beat_arguments(),
        *processes.flower_arguments(settings),
    ]

    assert not [argument for argument in arguments if "hidden" in argument]


def test_an_api_port_in_use_is_reported_without_a_traceback(taken_port: int) -> None:
    refused = run(
        "api",
        OVERNIGHT_DATABASE_URL="postgresql://127.0.0.1:9/x",
        OVERNIGHT_API_PORT=str(taken_port),
    )

    assert refused.exit_code == Code.FAILED
    assert f"127.0.0.1:{taken_port}" in refused.stderr


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]
