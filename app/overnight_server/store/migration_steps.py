"""What a migration after the baseline may do: each runs one SQL file in one of three ways.

A killed migration is continued by the next `overnight migrate`: a file in one transaction has run
or has not, batches find the rows that are left, and an index that was not finished is built again.
"""

import re
import time
from collections.abc import Callable
from typing import TypeVar

from alembic import op
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from overnight_server.store.db import sqlstate
from overnight_server.store.schema_fingerprint import (
    BASELINE,
    VERSIONS,
    fingerprints,
    store_schema,
)

T = TypeVar("T")

OWNER = "overnight_owner"
# While a statement waits for the lock of a table, everybody else waits behind it. It gives up after
# this time, and tries again when the others had their turn.
LOCK_TIMEOUT_MS = 2000
PAUSE_SECONDS = 1.0
TRIES = 200
# Lock timeout, deadlock, serialization failure.
PASSING = {"55P03", "40P01", "40001"}
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY (\w+)")
#: The same rows as in 19_rights.sql.
_REMEMBER_RIGHTS = r"""
DELETE FROM expected_rights;
INSERT INTO expected_rights
SELECT DISTINCT granted FROM granted_rights()
 WHERE granted ~ '\movernight_' OR granted LIKE 'row-level security %'
"""


def run_sql(revision: str) -> None:
    """Run the SQL file of a migration in one transaction, as the owner."""
    connection = _connection()
    connection.exec_driver_sql(f"SET LOCAL ROLE {OWNER}")
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")

    def run() -> None:
        with connection.begin_nested():
            connection.exec_driver_sql(_sql(revision))

    _until_locked(run)
    connection.exec_driver_sql("RESET ROLE")


def run_in_batches(revision: str) -> None:
    """Repeat the one statement of a migration, each time in its own transaction, until it is done.

    It must change at most some thousand rows at a time, and select those that are not changed yet.
    """
    with op.get_context().autocommit_block():
        connection = _as_owner()
        while _until_locked(lambda: connection.exec_driver_sql(_sql(revision)).rowcount):
            pass
        _as_login(connection)


def build_index(revision: str) -> None:
    """Run the one CREATE INDEX CONCURRENTLY of a migration; writers of the table go on."""
    [name] = _INDEX.findall(_sql(revision))
    with op.get_context().autocommit_block():
        connection = _as_owner()

        def build() -> None:
            # What an interrupted try leaves is an index that is not valid.
            connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            connection.exec_driver_sql(_sql(revision))

        _until_locked(build)
        _as_login(connection)


def record_schema(tx: Connection, scripts: ScriptDirectory, revision: str) -> None:
    """Store the schema and the rights that the database has after a migration."""
    store_schema(tx, revision, served_by(scripts, revision))
    if revision != BASELINE:
        tx.exec_driver_sql(f"SET LOCAL ROLE {OWNER}")
        tx.execution_options(no_parameters=True).exec_driver_sql(_REMEMBER_RIGHTS)
        tx.exec_driver_sql("RESET ROLE")


def served_by(scripts: ScriptDirectory, revision: str) -> list[str]:
    """Return the fingerprints of a revision, and of those before it whose processes can go on."""
    served = [fingerprints()[revision]]
    while serves_older(scripts, revision):
        revision = str(scripts.get_revision(revision).down_revision)
        served.append(fingerprints()[revision])
    return served


def serves_older(scripts: ScriptDirectory, revision: str) -> bool:
    """Whether processes of the revision before this one can go on with it."""
    return bool(getattr(scripts.get_revision(revision).module, "serves_older", False))


def _sql(revision: str) -> str:
    [file] = VERSIONS.glob(f"{revision}_*.sql")
    return file.read_text()


def _connection() -> Connection:
    # SQL files are executed without parameters, so that a % in them is a plain character.
    return op.get_bind().execution_options(no_parameters=True)


def _as_owner() -> Connection:
    connection = _connection()
    connection.exec_driver_sql(f"SET ROLE {OWNER}")
    connection.exec_driver_sql(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
    return connection


def _as_login(connection: Connection) -> None:
    connection.exec_driver_sql("RESET lock_timeout")
    connection.exec_driver_sql("RESET ROLE")


def _until_locked(run: Callable[[], T]) -> T:
    """Run something that needs locks; after a lock timeout others get them, and it runs again."""
    for _ in range(TRIES):
        try:
            return run()
        except DBAPIError as error:
            if sqlstate(error) not in PASSING:
                raise
            time.sleep(PAUSE_SECONDS)
    return run()
