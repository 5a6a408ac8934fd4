"""`overnight config show` prints every setting with its origin, and no secret."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from overnight_server.cli.main import app
from overnight_server.settings import Settings, load

SECRETS = {
    "OVERNIGHT_DATABASE_URL": "postgresql://app:hunter2@db/overnight",
    "OVERNIGHT_REDIS_URL": "redis://:hunter2@cache:6379/0",
    "OVERNIGHT_API_KEY": "hunter2",
    "OVERNIGHT_FLOWER_PASSWORD": "hunter2",
}


def test_secrets_are_masked_wherever_settings_are_shown() -> None:
    settings = load(SECRETS)

    shown = {row.env: row.value_masked for row in settings.masked()}
    assert shown["OVERNIGHT_DATABASE_URL"] == "postgresql+psycopg2://app:***@db/overnight"
    assert shown["OVERNIGHT_REDIS_URL"] == "redis://:***@cache:6379/0"
    assert shown["OVERNIGHT_API_KEY"] == shown["OVERNIGHT_FLOWER_PASSWORD"] == "***"
    assert "hunter2" not in f"{settings!r} {settings}"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    for env in [env for env in os.environ if env.startswith(("OVERNIGHT_", "AG_"))]:
        monkeypatch.delenv(env)
    for env, value in SECRETS.items():
        monkeypatch.setenv(env, value)
    return CliRunner()


def test_config_show_prints_one_document_without_secrets(cli: CliRunner) -> None:
    result = cli.invoke(app, ["config", "show", "--json"])

    rows = json.loads(result.stdout)["settings"]
    assert result.exit_code == 0
    assert {row["env"] for row in rows} == {row.env for row in Settings().masked()}
    [key] = [row for row in rows if row["name"] == "api_key"]
    assert (key["value"], key["origin"]) == ("***", "env")
    assert "hunter2" not in result.output


def test_config_show_aligns_its_columns_in_a_pipe(cli: CliRunner) -> None:
    result = cli.invoke(app, ["config", "show"])

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0].split() == ["SETTING", "ORIGIN", "VALUE"]
    assert {line.split()[1] for line in lines[1:]} == {"env", "default"}
    assert "\t" not in result.stdout
    assert "hunter2" not in result.output


def test_config_show_reports_a_wrong_setting_and_fails(
    cli: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERNIGHT_POLL_INTERVAL", "99")

    result = cli.invoke(app, ["config", "show"])

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: OVERNIGHT_POLL_INTERVAL=99: must be ")
