"""Bringing a database to today's schema."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from overnight_server.store.db import connect_args, driver_url

SCRIPTS = Path(__file__).parent / "migrations"
# One upgrade at a time, whoever starts it: an advisory lock held for the session.
UPGRADE_LOCK = 0x0F_E121_617


def upgrade(url: str, revision: str = "head") -> None:
    """Run every migration the database does not have yet; safe to run twice and at once."""
    with _connected(url) as connection:
        connection.exec_driver_sql(f"SELECT pg_advisory_lock({UPGRADE_LOCK})")
        connection.commit()
        command.upgrade(_config(connection), revision)


def downgrade(url: str, revision: str) -> None:
    """Take migrations back down to `revision` ("base" for an empty schema)."""
    with _connected(url) as connection:
        command.downgrade(_config(connection), revision)


def current(url: str) -> str | None:
    """Return the revision the database stands at, or None for an empty one."""
    with _connected(url) as connection:
        return revision(connection)


def revision(tx: Connection) -> str | None:
    """Return the revision an open connection's database stands at."""
    return MigrationContext.configure(tx).get_current_revision()


def head() -> str:
    """Return the newest revision this code knows."""
    newest = ScriptDirectory(str(SCRIPTS)).get_current_head()
    if newest is None:
        raise LookupError("no migration was found")
    return newest


def _connected(url: str) -> Connection:
    engine = create_engine(
        driver_url(url),
        poolclass=NullPool,
        hide_parameters=True,
        connect_args=connect_args(role=None, application_name="overnight-migrate", timeouts=None),
    )
    return engine.connect()


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = connection
    return config
