"""Creates or updates the database schema, and compares it with what this version needs."""

import time
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from overnight_server.store.db import Timeouts, connect_args, driver_url
from overnight_server.store.schema_fingerprint import check_schema
from overnight_server.telemetry import LogEvent, emit

SCRIPTS = Path(__file__).parent / "migrations"
# The key of the advisory lock that lets only one upgrade run at a time; held for the session.
UPGRADE_LOCK = 0x0F_E121_617


def upgrade(url: str, revision: str = "head") -> None:
    """Run every migration that the database does not have yet; safe to run twice and at once.

    Raises `SchemaMismatch` if the database was created with another version of the schema.
    """
    with _connected(url) as connection:
        connection.exec_driver_sql(f"SELECT pg_advisory_lock({UPGRADE_LOCK})")
        connection.commit()
        before, started = current_revision(connection), time.monotonic()
        # Alembic commits only transactions that it began itself.
        connection.commit()
        command.upgrade(_config(connection), revision)
        check_schema(connection)
        after = current_revision(connection)
    if after != before:
        emit(LogEvent.MIGRATED, revision=after, seconds=round(time.monotonic() - started, 3))


def check(url: str) -> None:
    """Raise `SchemaMismatch` if the database was created with another version of the schema.

    A database that is empty or unreachable passes: processes wait for it.
    """
    try:
        with _connected(url, Timeouts()) as connection:
            check_schema(connection)
    except OperationalError:
        return


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
            role=None, application_name="overnight-migrate", timeouts=timeouts
        ),
    )
    return engine.connect()


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = connection
    return config
