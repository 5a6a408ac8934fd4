"""The schema fingerprint: processes refuse a database that another version created."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from overnight_server.store import migrate
from overnight_server.store.db import driver_url
from overnight_server.store.schema_fingerprint import (
    SchemaMismatch,
    check_schema,
    schema_fingerprint,
    stored_schema,
)

PROCESSES = (["api"], ["dispatcher"], ["worker"], ["maintenance"], ["beat"])
COMMANDS = (
    ["migrate"],
    ["migrate", "--check"],
    ["user", "add", "ada", "--database"],
    ["sweep", "reap"],
)
OTHER_FINGERPRINT = "COMMENT ON TABLE alembic_version IS 'overnight schema 0123456789ab'"
# A database of a revision before ours; it may have tables of ours, or none.
OLD_REVISION = (
    "DROP OWNED BY overnight_owner; COMMENT ON TABLE alembic_version IS NULL;"
    " UPDATE alembic_version SET version_num = '0000'"
)


def run_sql(url: str, sql: str) -> None:
    engine = create_engine(driver_url(url), poolclass=NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(sql)


def overnight(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {
        "OVERNIGHT_DATABASE_URL": url,
        "OVERNIGHT_REDIS_URL": "redis://127.0.0.1:1",
    }
    return subprocess.run(
        [str(Path(sys.executable).with_name("overnight")), *arguments],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_migrated_database_has_the_fingerprint_of_this_version(empty_url: str) -> None:
    migrate.upgrade(empty_url)

    engine = create_engine(driver_url(empty_url), poolclass=NullPool)
    with engine.connect() as connection:
        assert stored_schema(connection).fingerprint == schema_fingerprint()
        check_schema(connection)


def test_an_empty_or_unreachable_database_passes(empty_url: str) -> None:
    migrate.check(empty_url)
    migrate.check("postgresql://nobody@127.0.0.1:1/nothing")


@pytest.mark.parametrize("comment", ["'overnight schema 0123456789ab'", "NULL"])
def test_another_fingerprint_or_none_is_refused(empty_url: str, comment: str) -> None:
    migrate.upgrade(empty_url)
    run_sql(empty_url, f"COMMENT ON TABLE alembic_version IS {comment}")

    with pytest.raises(SchemaMismatch, match=schema_fingerprint()):
        migrate.check(empty_url)
    with pytest.raises(SchemaMismatch):
        migrate.upgrade(empty_url)


@pytest.mark.parametrize("change", [OTHER_FINGERPRINT, OLD_REVISION], ids=["other", "old"])
@pytest.mark.parametrize("arguments", [*PROCESSES, *COMMANDS], ids=" ".join)
def test_nothing_starts_on_a_database_of_another_version(
    empty_url: str, arguments: list[str], change: str
) -> None:
    migrate.upgrade(empty_url)
    run_sql(empty_url, change)

    ended = overnight(empty_url, *arguments)

    assert ended.returncode == 1, ended.stderr
    assert "created by another version of Overnight" in ended.stderr
    assert schema_fingerprint() in ended.stderr
    assert "overnight down" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_database_whose_migrations_were_reverted_counts_as_empty(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    migrate.empty(empty_url)

    migrate.check(empty_url)
    migrate.upgrade(empty_url)


def test_a_migration_is_logged_once(empty_url: str) -> None:
    first, second = overnight(empty_url, "migrate"), overnight(empty_url, "migrate")

    assert first.returncode == second.returncode == 0, first.stderr
    assert "migrated" in first.stderr + first.stdout.lower()
    assert f"revision={migrate.head()}" in first.stderr + first.stdout
    assert "revision=" not in second.stderr + second.stdout
