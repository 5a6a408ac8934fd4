"""Our own Postgres: private, plain for the application, and there again after every stop."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg2
import pytest

from overnight_server.local.errors import CannotDropRoot, DataNotOurs, DidNotStart
from overnight_server.local.guarded_program import GuardedProgram, Program
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.privileges import (
    Identity,
    can_reach,
    choose_identity,
    unprivileged_user,
)
from tests.support.wait import wait_until

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o711)
        with EmbeddedPostgres(Path(directory), fsync=False) as running:
            yield running


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user may enter and write, unlike pytest's own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o777)
        yield Path(directory)


def query(url: str, sql: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect(url)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def test_the_application_owns_its_database_without_being_superuser(
    server: EmbeddedPostgres,
) -> None:
    [role] = query(
        server.url(),
        "SELECT rolsuper, rolbypassrls, rolcreaterole, rolcreatedb FROM pg_roles"
        " WHERE rolname = current_user",
    )
    [owner] = query(
        server.url(),
        "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()",
    )

    assert role == (False, False, True, False)
    assert owner == ("overnight",)


def test_a_connection_needs_the_password(server: EmbeddedPostgres) -> None:
    for url in (server.url(), server.superuser_url):
        user, _, address = url.removeprefix("postgresql://").partition("@")
        for wrong in (user.partition(":")[0], user.partition(":")[0] + ":wrong"):
            with pytest.raises(psycopg2.OperationalError, match=r"password|no password"):
                psycopg2.connect(f"postgresql://{wrong}@{address}")


def test_the_server_listens_on_loopback_only(server: EmbeddedPostgres) -> None:
    listening = [
        connection.laddr
        for connection in psutil.Process(server.pid).net_connections("all")
        if connection.status == psutil.CONN_LISTEN or isinstance(connection.laddr, str)
    ]

    assert [tuple(address) for address in listening] == [("127.0.0.1", server.cluster.port)]


def test_only_the_owner_can_read_passwords_and_data(server: EmbeddedPostgres) -> None:
    credentials = server.directory / "credentials.json"
    commands = [
        process.cmdline()
        for process in (psutil.Process(server.pid), *psutil.Process(server.pid).children())
    ]

    assert stat.S_IMODE(credentials.stat().st_mode) == 0o600
    assert stat.S_IMODE((server.directory / "postgres").stat().st_mode) == 0o700
    assert not list(server.directory.glob(".initdb-*"))
    for password in json.loads(credentials.read_text()).values():
        assert password not in str(commands)


def test_a_restart_finds_role_database_and_rows_again(server: EmbeddedPostgres) -> None:
    query(server.url(), "CREATE TABLE kept AS SELECT 42 AS answer")
    before = (server.url(), server.pid)

    server.stop()
    server.start()

    assert server.url() == before[0]
    assert server.pid != before[1]
    assert query(server.url(), "SELECT answer FROM kept") == [(42,)]


def test_an_immediate_stop_keeps_every_committed_row(server: EmbeddedPostgres) -> None:
    query(server.url(), "CREATE TABLE committed (number int)")
    for number in range(50):
        query(server.url(), f"INSERT INTO committed VALUES ({number})")

    server.stop(immediate=True)
    server.start()

    assert query(server.url(), "SELECT count(*) FROM committed") == [(50,)]
    assert "not properly shut down" in server.log.read_text()


def test_stop_does_not_wait_for_clients(server: EmbeddedPostgres) -> None:
    client = psycopg2.connect(server.url())

    server.stop()

    assert not server.running
    client.close()
    server.start()


def test_a_server_that_cannot_start_shows_its_log(server: EmbeddedPostgres) -> None:
    rival = EmbeddedPostgres(server.directory, port=server.cluster.port)

    with pytest.raises(DidNotStart, match=r"postmaster\.pid"):
        rival.start()


def test_an_interrupted_initdb_is_repeated(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path, fsync=False)
    broken = replace(server.cluster.binaries, directory=tmp_path / "broken")
    broken.directory.mkdir()
    broken.initdb.write_text("#!/bin/sh\necho the disk is full; exit 1\n")
    broken.initdb.chmod(0o755)
    broken.postgres.symlink_to(server.cluster.binaries.postgres)

    with pytest.raises(DidNotStart, match="the disk is full"):
        replace(server.cluster, binaries=broken).initialise()

    assert not (tmp_path / "postgres").exists()
    with server:
        assert query(server.url(), "SELECT 1") == [(1,)]


def test_data_of_another_postgres_or_user_is_refused(tmp_path: Path) -> None:
    cluster = EmbeddedPostgres(tmp_path).cluster
    cluster.data.mkdir()
    (cluster.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(DataNotOurs, match="created by Postgres 9"):
        cluster.initialise()

    (cluster.data / "PG_VERSION").write_text(f"{cluster.binaries_version()}\n")
    if os.geteuid() == 0:
        os.chown(cluster.data, 12345, 12345)
        with pytest.raises(DataNotOurs, match="user id 12345"):
            cluster.initialise()


def test_root_runs_postgres_as_nobody_even_below_a_closed_directory(
    tmp_path: Path, open_directory: Path
) -> None:
    tmp_path.chmod(0o700)
    closed = EmbeddedPostgres(tmp_path / "home", fsync=False)
    passable = EmbeddedPostgres(open_directory / "home", fsync=False)
    as_root = os.geteuid() == 0

    expected_uid = unprivileged_user().pw_uid if as_root else os.geteuid()
    for server in (closed, passable):
        with server:
            assert psutil.Process(server.pid).uids().effective == expected_uid
            assert query(server.url(), "SELECT 1") == [(1,)]
    if as_root:
        assert closed.cluster.identity is Identity.NOBODY_WITH_ACCESS
    else:
        assert closed.cluster.identity is Identity.CURRENT_USER


def test_an_ordinary_user_runs_postgres_under_the_same_account(open_directory: Path) -> None:
    # Root switches to an ordinary user for this test.
    identity = choose_identity([Path(sys.executable), PROJECT / "app", open_directory])
    code = """
        import os, sys
        from pathlib import Path
        import psutil
        from overnight_server.local.postgres import EmbeddedPostgres
        assert os.geteuid() != 0
        with EmbeddedPostgres(Path(sys.argv[1], "home"), fsync=False) as server:
            assert psutil.Process(server.pid).uids().effective == os.geteuid()
            assert server.cluster.identity.value == "current_user"
        print("served")
    """
    log = open_directory / "log"
    with log.open("wb") as output:
        program = GuardedProgram(
            Program(
                [sys.executable, "-B", "-c", textwrap.dedent(code), str(open_directory)],
                identity=identity,
                cwd=PROJECT,
            ),
            output=output,
        )
        code_of_exit = program.wait(60)
        program.stop()

    assert (code_of_exit, log.read_text()) == (0, "served\n")


def test_kill_9_of_its_owner_shuts_postgres_down_cleanly(tmp_path: Path) -> None:
    code = """
        import sys, time
        from pathlib import Path
        from overnight_server.local.postgres import EmbeddedPostgres
        server = EmbeddedPostgres(Path(sys.argv[1]), fsync=False).start()
        Path(sys.argv[1], "pid").write_text(str(server.pid))
        time.sleep(60)
    """
    argv = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    with subprocess.Popen(argv, cwd=PROJECT) as owner:
        written = tmp_path / "pid"
        pid = wait_until(lambda: written.exists() and int(written.read_text() or 0))
        owner.kill()

    wait_until(lambda: not psutil.pid_exists(pid), timeout=20)
    log = (tmp_path / "postgres.log").read_text()
    assert "database system is shut down" in log


def test_can_reach_checks_every_parent_directory(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    foreign_ids = (54321, 54321)
    tmp_path.chmod(0o700)
    assert not can_reach(inner, *foreign_ids)

    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.geteuid() and not directory.stat().st_mode & stat.S_IXOTH:
            # Pytest closes its own directories; ours alone is the question here.
            directory.chmod(0o711)
    assert can_reach(inner, *foreign_ids)
    inner.parent.chmod(0o700)
    assert not can_reach(inner, *foreign_ids)


def test_without_the_capability_to_drop_root_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(
        "overnight_server.local.privileges._has_capability", lambda _capability: False
    )

    with pytest.raises(CannotDropRoot, match="OVERNIGHT_DATABASE_URL"):
        choose_identity([tmp_path / "data"])
