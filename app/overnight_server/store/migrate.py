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
from overnight_server.store.schema_fingerprint import check_schema
from overnight_server.telemetry import LogEvent, emit

SCRIPTS = Path(__file__).parent / "migrations"
# The key of the advisory lock that lets only one upgrade run at a time; held for the session.
UPGRADE_LOCK = 0x0F_E121_617
MIN_POSTGRES = 16
NO_RIGHT = "42501"


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
    `UnsuitableDatabase` if the server or the login cannot have the schema. Raises
    `NeedsDirectConnection` for a pooler, because the lock below belongs to a session.
    """
    if has_pooler(url):
        raise NeedsDirectConnection
    with _connected(url) as connection, _explained_rights():
        check_version(connection)
        connection.exec_driver_sql(f"SELECT pg_advisory_lock({UPGRADE_LOCK})")
        connection.commit()
        before, started = current_revision(connection), time.monotonic()
        # Alembic commits only transactions that it began itself.
        connection.commit()
        command.upgrade(_config(connection), revision)
        check_schema(connection)
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
    `UnsuitableDatabase` if the server is too old.
    """
    try:
        with _connected(url, Timeouts()) as connection:
            check_version(connection)
            check_schema(connection)
    except OperationalError:
        return


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
