"""A Postgres that cannot have the schema is refused with one sentence and what to do."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from overnight_server.cli.terminal.failures import Code
from overnight_server.local.home import Home
from overnight_server.local.local_stack import LocalStack
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.settings import load
from overnight_server.store import migrate
from tests.support.command import run
from tests.support.servers import Superuser
from tests.support.terminal import Terminal

RIGHTS = "ALTER ROLE <login> CREATEROLE; ALTER DATABASE <database> OWNER TO <login>;"


@pytest.fixture
def weak_url(postgres: EmbeddedPostgres, template: str, as_superuser: Superuser) -> Iterator[str]:
    """A database whose owner may not create roles."""
    as_superuser.run("CREATE ROLE weak LOGIN PASSWORD 'weak'")
    as_superuser.run("CREATE DATABASE weak OWNER weak")
    yield f"postgresql://weak:weak@127.0.0.1:{postgres.cluster.port}/weak"
    as_superuser.run("DROP DATABASE weak WITH (FORCE)")
    as_superuser.run("DROP ROLE weak")


@pytest.mark.usefixtures("database_environment")
@pytest.mark.parametrize("command", ["migrate", "dispatcher", "api"])
def test_a_server_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("OVERNIGHT_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(migrate, "MIN_POSTGRES", 99)

    refused = run(command)

    assert refused.exit_code == Code.FAILED
    first, second = refused.stderr.splitlines()
    assert first.startswith("Error: the server is Postgres ")
    assert first.endswith(", and Overnight needs Postgres 99 or newer")
    assert "Set OVERNIGHT_DATABASE_URL to a newer server" in second


@pytest.mark.usefixtures("empty_environment")
def test_a_login_that_may_not_create_roles_is_told_what_it_needs(
    weak_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERNIGHT_DATABASE_URL", weak_url)

    refused = run("migrate")

    assert refused.exit_code == Code.FAILED
    assert refused.stderr.startswith("Error: this login may not create the schema: permission")
    assert RIGHTS in refused.stderr
    assert len(refused.stderr.splitlines()) == 2


def test_up_shows_the_same_sentence(weak_url: str, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / ".overnight")
    terminal.env["OVERNIGHT_DATABASE_URL"] = weak_url

    refused = terminal.type("up")

    assert refused.returncode == 1
    assert "this login may not create the schema: permission" in refused.stdout
    assert RIGHTS in refused.stdout
    assert "Traceback" not in refused.stdout + refused.stderr


def test_the_published_address_needs_no_other_driver(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.prepare()
    stack = LocalStack.plan(load({"OVERNIGHT_HOME": str(tmp_path)}), home)

    engine = create_engine(stack.connection(ready=True).database_url)

    assert engine.driver == "psycopg2"
