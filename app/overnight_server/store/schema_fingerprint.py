"""The fingerprint of the schema, by which a process detects a database of another version.

Until the first release the schema changes in place, without further migrations, so Alembic's
revision does not show a change. The migration stores a hash of its SQL files as the comment of
Alembic's table; every process compares it with the hash of its own files when it starts.
"""

import hashlib
import re
from functools import cache
from pathlib import Path

from sqlalchemy import Connection

SCHEMA = Path(__file__).parent / "migrations" / "versions" / "schema"
_COMMENT = re.compile(r"--.*$", re.MULTILINE)
_PREFIX = "overnight schema "


#: What an operator must do; the first release will bring migrations instead.
ADVICE = (
    "Before the first release a database cannot be upgraded: create it again; its tasks are lost."
    " Local stack: run `overnight down`, delete the directory `postgres` in its home"
    " (`.overnight` by default), run `overnight up`. Other databases: run `dropdb` and `createdb`,"
    " then `overnight migrate`."
)


class SchemaMismatch(Exception):
    """The database was created with another schema than this version needs."""

    def __init__(self, stored: str | None, expected: str) -> None:
        self.stored = stored
        self.expected = expected
        super().__init__(
            f"the database was created by another version of Overnight: it has schema"
            f" {stored or 'without a fingerprint'}, and this version needs schema {expected}"
        )


@cache
def schema_fingerprint() -> str:
    """Return the hash of this version's SQL files; comments and blanks do not change it."""
    digest = hashlib.sha256()
    for file in sorted(SCHEMA.glob("*.sql")):
        statements = _COMMENT.sub("", file.read_text())
        digest.update(" ".join(statements.split()).encode())
    return digest.hexdigest()[:12]


def fingerprint_comment() -> str:
    """Return the statement that stores the fingerprint in the database."""
    return f"COMMENT ON TABLE alembic_version IS '{_PREFIX}{schema_fingerprint()}'"


def stored_fingerprint(tx: Connection) -> str | None:
    """Return the fingerprint that the database was created with; None if it has none."""
    comment: str | None = tx.exec_driver_sql(
        "SELECT obj_description(to_regclass('alembic_version'), 'pg_class')"
    ).scalar_one()
    return comment.removeprefix(_PREFIX) if comment and comment.startswith(_PREFIX) else None


def check_schema(tx: Connection) -> bool:
    """Raise `SchemaMismatch` if the database was created with another schema.

    Return False for an empty database, which passes: the migration has not run yet. A database is
    empty without our tables and without a revision.
    """
    stored = stored_fingerprint(tx)
    if stored == schema_fingerprint() and _has_tables(tx):
        return True
    if _has_tables(tx) or _has_revision(tx):
        raise SchemaMismatch(stored, schema_fingerprint())
    return False


def _has_tables(tx: Connection) -> bool:
    return bool(tx.exec_driver_sql("SELECT to_regclass('tasks') IS NOT NULL").scalar_one())


def _has_revision(tx: Connection) -> bool:
    """Whether Alembic's table has a row; one that this login may not read counts as having one."""
    is_readable = tx.exec_driver_sql(
        "SELECT has_table_privilege(to_regclass('alembic_version'), 'SELECT')"
    ).scalar_one()
    if is_readable is None:
        return False
    rows = "SELECT count(*) FROM alembic_version"
    return not is_readable or bool(tx.exec_driver_sql(rows).scalar_one())
