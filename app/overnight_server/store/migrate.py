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
from overnight_server.store.schema_fingerprint import SCHEMA, check_schema
from overnight_server.telemetry import LogEvent, emit

SCRIPTS = Path(__file__).parent / "migrations"
# The key of the advisory lock that lets only one upgrade run at a time; held for the session.
UPGRADE_LOCK = 0x0F_E121_617
MIN_POSTGRES = 16
NO_RIGHT = "42501"
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


def upgrade(url: str, revision: str = "head") -> None:
    """Run every migration that the database does not have yet; safe to run twice and at once.

    Raises `SchemaMismatch` if the database was created with another version of the schema, and
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
            check_schema(connection)
        # Alembic commits only transactions that it began itself.
        connection.commit()
        command.upgrade(_config(connection), revision)
        if check_schema(connection):
            check_rights(connection)
        _forbid_temporary_tables(connection)
        after = current_revision(connection)
    if after != before:
        emit(LogEvent.MIGRATED, revision=after, seconds=round(time.monotonic() - started, 3))


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


def downgrade(url: str, revision: str) -> None:
    """Revert migrations down to `revision` ("base" for an empty database)."""
    with _connected(url) as connection:
        command.downgrade(_config(connection), revision)


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
