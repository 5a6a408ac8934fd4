"""Creates or updates the database schema, and compares it with what this version needs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from overnight_server.store.db import (
    Timeouts,
    connect_args,
    driver_url,
    has_pooler,
    session_options,
    sqlstate,
)
from overnight_server.store.migration_steps import served_by, serves_older
from overnight_server.store.schema_fingerprint import (
    SCHEMA,
    check_origin,
    check_schema,
    store_schema,
)
from overnight_server.telemetry import LogEvent, emit

SCRIPTS = Path(__file__).parent / "migrations"
# The key of the advisory lock that lets only one upgrade run at a time; held for the session.
UPGRADE_LOCK = 0x0F_E121_617
MIN_POSTGRES = 16
NO_RIGHT = "42501"
# How long processes of the version before have to notice a migration that they cannot live with
# (`schema_watch.CHECK_SECONDS`), to hand back their runs and to end.
LEAVE_SECONDS = 60.0
OTHER_SESSIONS = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid()
       AND usename IN (session_user, 'overnight_api', 'overnight_service')
"""
MISSING_RIGHTS = """
    SELECT granted FROM expected_rights EXCEPT SELECT granted FROM granted_rights() ORDER BY 1
"""


class UnsuitableDatabase(Exception):
    """The server is too old, or the login may not create the schema; `advice` says what to do."""

    def __init__(self, message: str, advice: str) -> None:
        self.advice = advice
        super().__init__(message)


class NeedsDirectConnection(Exception):
    """A migration was started through a pooler in transaction mode."""

    def __init__(self) -> None:
        super().__init__("a migration needs a direct connection to Postgres, without a pooler")


def upgrade(url: str) -> None:
    """Run every migration that the database does not have yet; safe to run twice and at once.

    Processes of the version before go on, or have a minute to end if a migration does not serve
    them. Does nothing to the database of a later version that serves this one. Raises
    `SchemaMismatch` if the database has a schema that no version of ours had, and
    `UnsuitableDatabase` if the server or the login cannot have the schema, or rights are missing.
    Raises `NeedsDirectConnection` for a pooler, because the lock below belongs to a session.
    """
    if has_pooler(url):
        raise NeedsDirectConnection
    with _connected(url) as connection, _explained_rights():
        check_version(connection)
        connection.exec_driver_sql(f"SELECT pg_advisory_lock({UPGRADE_LOCK})")
        connection.commit()
        before, started = current_revision(connection), time.monotonic()
        if before is not None and not _is_known(before):
            # A later version migrated it. If it serves this one, there is nothing to do.
            check_schema(connection)
            check_rights(connection)
            return
        if before is not None:
            _prepare(connection, before)
        # Alembic commits only transactions that it began itself.
        connection.commit()
        command.upgrade(_config(connection), "head")
        if check_schema(connection):
            check_rights(connection)
        _forbid_temporary_tables(connection)
        after = current_revision(connection)
    if after != before:
        emit(LogEvent.MIGRATED, revision=after, seconds=round(time.monotonic() - started, 3))


def _prepare(connection: Connection, before: str) -> None:
    """Check what the next migrations start from; let processes go that cannot live with them."""
    check_origin(connection, before)
    scripts = ScriptDirectory(str(SCRIPTS))
    pending = [one.revision for one in scripts.iterate_revisions("head", before)]
    if pending:
        check_rights(connection)
    if all(serves_older(scripts, revision) for revision in pending):
        # This also takes back what a migration announced that was then given up.
        store_schema(connection, before, served_by(scripts, before))
        connection.commit()
        return
    store_schema(connection, before, serves=())
    connection.commit()
    _wait_until_alone(connection)


def _wait_until_alone(connection: Connection) -> None:
    """Wait until no process uses the database, or all of them have had the time to end."""
    ends_at = time.monotonic() + LEAVE_SECONDS
    while connection.exec_driver_sql(OTHER_SESSIONS).scalar_one() and time.monotonic() < ends_at:
        connection.commit()
        time.sleep(1)
    connection.commit()


def _forbid_temporary_tables(connection: Connection) -> None:
    """Let only the owner create temporary tables, on which others could create triggers.

    Done at each upgrade, because neither a dump nor a copy contains the rights on a database.
    """
    database = connection.exec_driver_sql("SELECT quote_ident(current_database())").scalar_one()
    connection.exec_driver_sql(f"REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC")
    connection.exec_driver_sql(f"GRANT TEMPORARY ON DATABASE {database} TO overnight_owner")
    connection.commit()


def check(url: str) -> None:
    """Raise `SchemaMismatch` if the database was created with another version of the schema.

    A database that is empty or unreachable passes: processes wait for it. Raises
    `UnsuitableDatabase` if the server is too old, or if rights of our roles are missing.
    """
    try:
        with _connected(url, Timeouts()) as connection:
            check_version(connection)
            if check_schema(connection):
                check_rights(connection)
    except OperationalError:
        return


def create_roles(url: str) -> None:
    """Create Overnight's roles in the cluster of this database; existing roles stay as they are.

    A dump does not contain roles, so this comes before a restore into another cluster. Raises
    `UnsuitableDatabase` if the server or the login cannot have them.
    """
    with _connected(url) as connection, _explained_rights():
        check_version(connection)
        roles, *_ = sorted(SCHEMA.glob("*.sql"))
        connection.execution_options(no_parameters=True).exec_driver_sql(roles.read_text())
        connection.commit()


def check_rights(connection: Connection) -> None:
    """Raise `UnsuitableDatabase` if rights are missing that the migration gave to our roles.

    That is so after a restore into a cluster in which the roles did not exist.
    """
    try:
        missing = connection.exec_driver_sql(MISSING_RIGHTS).scalars().all()
    except DBAPIError as error:
        if sqlstate(error) != NO_RIGHT:
            raise
        missing = ["SELECT on expected_rights"]
    if missing:
        raise UnsuitableDatabase(
            f"the database lacks {len(missing)} of the rights of Overnight's roles, such as"
            f" {missing[0]!r}: it was restored from a dump before the roles existed, or its rights"
            " were changed",
            "Create an empty database, run `overnight migrate --roles` on it, and then restore the"
            " dump into it with `pg_restore`.",
        )


def check_version(connection: Connection) -> None:
    """Raise `UnsuitableDatabase` if the server is too old."""
    major = int((connection.dialect.server_version_info or (0,))[0])
    if major < MIN_POSTGRES:
        raise UnsuitableDatabase(
            f"the server is Postgres {major}, and Overnight needs Postgres {MIN_POSTGRES} or newer",
            "Set OVERNIGHT_DATABASE_URL to a newer server; without it, `overnight up` starts one.",
        )


@contextmanager
def _explained_rights() -> Iterator[None]:
    """Raise `UnsuitableDatabase` instead of the driver's error if the login lacks a right."""
    try:
        yield
    except DBAPIError as error:
        if sqlstate(error) != NO_RIGHT:
            raise
        reason = str(error.orig).strip().splitlines()[0]
        raise UnsuitableDatabase(
            f"this login may not create the schema: {reason}",
            "Migrate with a login that owns the database and may create roles. A superuser can give"
            " both: ALTER ROLE <login> CREATEROLE; ALTER DATABASE <database> OWNER TO <login>;",
        ) from error


def empty(url: str) -> None:
    """Drop every object of Overnight; the roles stay."""
    with _connected(url) as connection:
        command.downgrade(_config(connection), "base")


def current(url: str) -> str | None:
    """Return the revision of a database; None for an empty one."""
    with _connected(url) as connection:
        return current_revision(connection)


def current_revision(tx: Connection) -> str | None:
    """Return the revision of an open connection's database; None for an empty one."""
    return MigrationContext.configure(tx).get_current_revision()


def head() -> str:
    """Return the newest revision of this version."""
    newest = ScriptDirectory(str(SCRIPTS)).get_current_head()
    if newest is None:
        raise LookupError(f"no migration in {SCRIPTS}")
    return newest


def _is_known(revision: str) -> bool:
    scripts = ScriptDirectory(str(SCRIPTS)).walk_revisions()
    return any(script.revision == revision for script in scripts)


def _connected(url: str, timeouts: Timeouts | None = None) -> Connection:
    engine = create_engine(
        driver_url(url),
        poolclass=NullPool,
        hide_parameters=True,
        connect_args=connect_args(
            "overnight-migrate",
            timeouts,
            {} if has_pooler(url) else session_options(role=None, timeouts=timeouts),
        ),
    )
    return engine.connect()


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = connection
    return config
