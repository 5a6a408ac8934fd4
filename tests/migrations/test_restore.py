"""A dump restored into another cluster: the roles must exist first, and migrate notices if not."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.store import migrate
from overnight_server.store.migrate import UnsuitableDatabase
from tests.migrations.test_schema_fingerprint import overnight, run_sql
from tests.support.servers import Superuser, postgres_server


@pytest.fixture
def other_cluster() -> Iterator[EmbeddedPostgres]:
    """A cluster in which Overnight was never migrated; its database is empty."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def dump(empty_url: str, postgres: EmbeddedPostgres, tmp_path: Path) -> Path:
    migrate.upgrade(empty_url)
    path = tmp_path / "overnight.dump"
    name = empty_url.rpartition("/")[2]
    _run(postgres, "pg_dump", "--format=custom", f"--file={path}", f"--dbname={name}")
    return path


def _run(server: EmbeddedPostgres, program: str, *options: str, check: bool = True) -> None:
    """Run a program of Postgres as the superuser of a server."""
    url = server.superuser_url
    binary = server.cluster.binaries.postgres.with_name(program)
    environ = {
        **os.environ,
        "PGHOST": "127.0.0.1",
        "PGPORT": str(server.cluster.port),
        "PGUSER": "postgres",
        "PGPASSWORD": url.partition("postgres:")[2].partition("@")[0],
    }
    subprocess.run([str(binary), *options], env=environ, check=check, capture_output=True)


def _restore(server: EmbeddedPostgres, dump: Path, *, check: bool) -> None:
    _run(server, "pg_restore", "--dbname=overnight", str(dump), check=check)


def test_migrate_notices_a_restore_without_roles(
    other_cluster: EmbeddedPostgres, dump: Path
) -> None:
    _restore(other_cluster, dump, check=False)
    url = other_cluster.url()

    ended = [overnight(url, *arguments) for arguments in (["migrate"], ["dispatcher"])]

    for each in ended:
        assert each.returncode == 1
        assert "rights of Overnight's roles" in each.stderr
        assert "overnight migrate --roles" in each.stderr
        assert "Traceback" not in each.stderr


def test_a_restore_after_the_roles_is_complete(other_cluster: EmbeddedPostgres, dump: Path) -> None:
    url = other_cluster.url()

    made = overnight(url, "migrate", "--roles")
    _restore(other_cluster, dump, check=True)

    assert made.returncode == 0, made.stderr
    assert overnight(url, "migrate").returncode == 0
    migrate.check(url)


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("REVOKE SELECT ON tasks FROM overnight_app", "SELECT on tasks for overnight_app"),
        ("DROP POLICY own_rows ON tasks", "policy own_rows on tasks"),
        ("ALTER TABLE tasks NO FORCE ROW LEVEL SECURITY", "row-level security on tasks"),
        (
            "REVOKE EXECUTE ON FUNCTION holder_of_key FROM overnight_app",
            "EXECUTE on holder_of_key(text,text) for overnight_app",
        ),
        ("ALTER TABLE tasks OWNER TO overnight", "overnight_owner as owner of tasks"),
    ],
)
def test_a_missing_right_is_named(
    empty_url: str, as_superuser: Superuser, lost: str, named: str
) -> None:
    migrate.upgrade(empty_url)
    if "OWNER TO" in lost:
        run_sql(empty_url, f"GRANT overnight_owner TO CURRENT_USER; {lost}")
    else:
        run_sql(empty_url, f"SET ROLE overnight_owner; {lost}")

    with pytest.raises(UnsuitableDatabase) as refused:
        migrate.upgrade(empty_url)

    assert named in str(refused.value)


def test_further_rights_of_other_roles_are_welcome(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    run_sql(empty_url, "SET ROLE overnight_owner; GRANT SELECT ON tasks TO overnight")

    migrate.check(empty_url)
