"""The CLI works without the server's packages, and names the extra that a command needs."""

import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = (
    *("alembic", "celery", "fastapi", "jsonschema", "kombu", "psycopg2", "pydantic_settings"),
    *("redis", "sqlalchemy", "starlette", "structlog", "ulid", "uvicorn"),
)
PROGRAM = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
from overnight_server.cli.main import main
main()
"""


def run_small(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in an interpreter that cannot import the server's packages."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(blocked=BLOCKED), *arguments],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "HOME": str(directory), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "command", ["", "add", "list", "batch", "dag", "profile", "bulk", "user", "dead", "trigger"]
)
def test_help_needs_no_server_package(tmp_path: Path, command: str) -> None:
    printed = run_small(tmp_path, *command.split(), "--help")

    assert printed.returncode == 0, printed.stderr
    assert "Usage: overnight" in printed.stdout


@pytest.mark.parametrize(
    "command",
    ["list", "add x", "get 1", "limits", "dag list", "bulk list", "forecast", "user list"],
)
def test_a_command_without_server_says_how_to_configure_one(tmp_path: Path, command: str) -> None:
    printed = run_small(tmp_path, *command.split())

    assert printed.returncode == 1, printed.stderr
    assert printed.stderr.startswith("Error: No server is configured or running here.\n")


def test_a_batch_file_is_checked_without_server_packages(tmp_path: Path) -> None:
    (tmp_path / "night.yaml").write_text("- titel: a\n", encoding="utf-8")

    printed = run_small(tmp_path, "batch", "night.yaml")

    assert printed.returncode == 2
    assert "night.yaml:1" in printed.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [("up", "embedded"), ("migrate", "server"), ("worker", "server"), ("sweep reap", "server")],
)
def test_a_command_of_the_server_names_the_extra_that_it_needs(
    tmp_path: Path, command: str, extra: str
) -> None:
    printed = run_small(tmp_path, *command.split())

    assert printed.returncode == 2
    name = command.split(maxsplit=1)[0]
    message = f"`overnight {name}` needs the server: pip install 'overnight[{extra}]'"
    assert printed.stderr == f"Error: {message}\n"


@pytest.mark.parametrize("group", ["dag", "user", "key", "dead", "config", "audit", "approvals"])
def test_a_group_without_a_command_prints_its_help(tmp_path: Path, group: str) -> None:
    printed = run_small(tmp_path, group)

    assert printed.returncode in (0, 2)
    assert f"Usage: overnight {group}" in printed.stdout + printed.stderr
    assert "Missing command" not in printed.stderr
