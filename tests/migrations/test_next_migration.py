"""A migration after the last release: written by the recipe, applied to data, killed, resumed."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from overnight_server.domain.results import Returned
from overnight_server.local.home import Home
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.maintenance.audit import audit_all
from overnight_server.store import migrate
from overnight_server.store.db import driver_url
from overnight_server.store.schema_fingerprint import SchemaMismatch, schema_fingerprint
from tests.migrations.test_schema_fingerprint import overnight, run_sql
from tests.support.command import run
from tests.support.deployment import AGENT, Deployment
from tests.support.night import connected
from tests.support.releases import COLOURS, RELEASES, LaterVersion, load_release, with_colours
from tests.support.restored_server import deployment_on, open_directory
from tests.support.wait import wait_until

INDEX_IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'tasks_colour'::regclass"
# A trigger keeps moved_from, which is null after an update that changes no state.
ALL_ROWS = "SELECT to_jsonb(t) - '{colour,moved_from}'::text[] AS row FROM tasks t ORDER BY id"
# Only the superuser sees what the sessions of other logins wait for.
WAITING_MIGRATION = """
    SELECT query FROM pg_stat_activity
     WHERE application_name = 'overnight-migrate' AND wait_event_type = 'Lock'
"""


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> LaterVersion:
    return with_colours(tmp_path_factory.mktemp("later"))


@pytest.fixture
def released_url(empty_url: str, postgres: EmbeddedPostgres) -> str:
    """A database of the newest release, migrated to this version."""
    superuser_url = f"{postgres.superuser_url.rpartition('/')[0]}/{empty_url.rpartition('/')[2]}"
    load_release(empty_url, superuser_url, RELEASES[-1])
    migrate.upgrade(empty_url)
    postgres.cluster.prepare_logins()
    return empty_url


@pytest.fixture
def waiting(postgres: EmbeddedPostgres) -> Iterator[Callable[[], str]]:
    """Return the statement of the migration that waits for a lock, or nothing."""
    with closing(psycopg2.connect(postgres.superuser_url)) as watcher:
        watcher.autocommit = True

        def look() -> str:
            with watcher.cursor() as cursor:
                cursor.execute(WAITING_MIGRATION)
                return " ".join(query for (query,) in cursor.fetchall())

        yield look


@pytest.fixture
def released(released_url: str) -> Iterator[Deployment]:
    with connected(released_url) as deployment:
        yield deployment


def has_colours(deployment: Deployment) -> None:
    """Check that all three migrations are done."""
    assert deployment.rows("SELECT 1 FROM tasks WHERE colour IS DISTINCT FROM 'grey'") == []
    assert deployment.one(INDEX_IS_VALID)["indisvalid"]


def test_data_are_kept_and_old_rows_are_legal(
    released: Deployment, released_url: str, later: LaterVersion
) -> None:
    before = released.rows(ALL_ROWS)
    behind = later.migrate(released_url, "--check")

    migrated, again = later.migrate(released_url), later.migrate(released_url)
    checked = later.migrate(released_url, "--check")

    assert behind.returncode == 1
    assert "earlier version" in behind.stderr
    assert "overnight migrate" in behind.stderr
    assert migrated.returncode == again.returncode == checked.returncode == 0, migrated.stderr
    assert len(before) > 10
    assert released.rows(ALL_ROWS) == before
    has_colours(released)
    assert audit_all(released.dispatcher) == 0


def test_code_of_this_version_works_on_a_database_that_serves_it(
    released: Deployment, released_url: str, later: LaterVersion
) -> None:
    assert later.migrate(released_url).returncode == 0

    migrate.check(released_url)
    ours, checked = (
        overnight(released_url, "migrate"),
        overnight(released_url, "migrate", "--check"),
    )
    released.agent()
    for claim in released.claim().claims:
        run = released.start(claim, AGENT)
        assert run is not None
        assert released.settle(run, Returned("done"))
    task_id = released.task(released.user())

    assert ours.returncode == checked.returncode == 0, ours.stderr
    assert "serves this version too" in ours.stdout
    assert released.row(task_id)["colour"] is None
    assert audit_all(released.dispatcher) == 0


def test_a_killed_migration_is_resumed(
    released: Deployment, released_url: str, tmp_path: Path, waiting: Callable[[], str]
) -> None:
    later = LaterVersion.copy_to(tmp_path / "later")
    for message, sql, step in COLOURS:
        later.add_migration(message, sql, step=step)
        if step == "run_sql":
            assert later.migrate(released_url).returncode == 0
    engine = create_engine(driver_url(released_url), poolclass=NullPool)
    with engine.begin() as holder:
        holder.exec_driver_sql("SET LOCAL ROLE overnight_owner")
        holder.execute(text("SELECT FROM tasks ORDER BY id DESC LIMIT 1 FOR UPDATE"))
        migration = later.begin_migrate(released_url)
        wait_until(lambda: "grey" in waiting(), what="the last task to be waited for", timeout=60)
        migration.kill()
        migration.communicate()
        coloured = released.one("SELECT count(colour) AS n, count(*) AS of FROM tasks")
    left = overnight(released_url, "migrate", "--check")

    resumed = later.migrate(released_url)

    assert 0 < coloured["n"] < coloured["of"]
    assert left.returncode == 0, left.stderr
    assert resumed.returncode == 0, resumed.stderr
    has_colours(released)


def test_a_half_built_index_is_built_again(
    released: Deployment, released_url: str, later: LaterVersion, postgres: EmbeddedPostgres
) -> None:
    assert later.migrate(released_url).returncode == 0
    before = later.fingerprint("0003")
    run_sql(
        released_url,
        "UPDATE alembic_version SET version_num = '0003';"
        f"COMMENT ON TABLE alembic_version IS 'overnight schema {before} at 0003 serves {before}'",
    )
    as_superuser(
        postgres,
        released_url,
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'tasks_colour'::regclass",
    )

    resumed = later.migrate(released_url)

    assert resumed.returncode == 0, resumed.stderr
    has_colours(released)


def as_superuser(postgres: EmbeddedPostgres, url: str, sql: str) -> None:
    """Execute a statement in the database of a URL."""
    run_sql(f"{postgres.superuser_url.rpartition('/')[0]}/{url.rpartition('/')[2]}", sql)


def test_a_new_right_is_expected_from_then_on(released_url: str, later: LaterVersion) -> None:
    assert later.migrate(released_url).returncode == 0
    run_sql(released_url, "SET ROLE overnight_owner; REVOKE SELECT ON colours FROM overnight_app")

    checked = later.migrate(released_url, "--check")

    assert checked.returncode == 1
    assert "SELECT on colours for overnight_app" in checked.stderr


def test_a_table_lock_is_not_waited_for_in_front_of_others(
    released: Deployment, released_url: str, later: LaterVersion, waiting: Callable[[], str]
) -> None:
    engine = create_engine(driver_url(released_url), poolclass=NullPool)
    with engine.begin() as reader:
        reader.exec_driver_sql("SET LOCAL ROLE overnight_owner")
        reader.exec_driver_sql("SELECT count(*) FROM tasks")
        migration = later.begin_migrate(released_url)
        wait_until(waiting, what="the migration to wait", timeout=60)
        wait_until(lambda: not waiting(), what="the migration to give way", timeout=20)
        released.task(released.user())
    output, _ = migration.communicate(timeout=60)

    assert migration.returncode == 0, output
    has_colours(released)


def test_a_version_that_is_not_served_is_refused(
    released_url: str, tmp_path: Path, later: LaterVersion
) -> None:
    newest = LaterVersion.copy_to(tmp_path / "newest")
    newest.add_migration(
        "drop what this version reads",
        "ALTER TABLE tasks RENAME COLUMN title TO headline;\n",
        serves_older=False,
    )
    assert newest.migrate(released_url).returncode == 0

    refused = overnight(released_url, "dispatcher")
    other = later.migrate(released_url)

    with pytest.raises(SchemaMismatch, match=schema_fingerprint()):
        migrate.check(released_url)
    for ended in (refused, other):
        assert ended.returncode == 1
        assert "Traceback" not in ended.stderr
    assert "later version" in refused.stderr
    assert "backup" in refused.stderr


def test_a_migration_that_was_announced_and_given_up_can_be_taken_back(released_url: str) -> None:
    serves = f"overnight schema {schema_fingerprint()} at {migrate.head()} serves"
    run_sql(released_url, f"COMMENT ON TABLE alembic_version IS '{serves} nobody'")

    refused, again = overnight(released_url, "dispatcher"), overnight(released_url, "migrate")

    assert refused.returncode == 1
    assert "is being migrated" in refused.stderr
    assert again.returncode == 0, again.stderr
    migrate.check(released_url)


def test_a_backup_of_this_version_is_migrated_when_it_is_restored(
    later: LaterVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OVERNIGHT_DATABASE_URL", raising=False)
    with open_directory() as directory:
        first, second = Home(directory / "first"), Home(directory / "second")
        first.prepare()
        with EmbeddedPostgres(first.path, fsync=False) as server:
            migrate.upgrade(server.url())
            with deployment_on(server.url()) as deployment:
                task_id = deployment.task(deployment.user(), title="from the backup")
        monkeypatch.setenv("OVERNIGHT_HOME", str(first.path))
        saved = run("backup", str(directory / "night.backup"))

        restored = later.restore(directory / "night.backup", second.path)

        assert saved.exit_code == 0, saved.output
        assert restored.returncode == 0, restored.stderr
        with (
            EmbeddedPostgres(second.path, fsync=False) as server,
            deployment_on(server.url()) as deployment,
        ):
            row = deployment.row(task_id)
            assert (row["title"], row["colour"]) == ("from the backup", "grey")
