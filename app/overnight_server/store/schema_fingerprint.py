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


class SchemaMismatch(Exception):
    """The database was created by another version of Overnight."""

    def __init__(self, stored: str | None, expected: str) -> None:
        self.stored = stored
        self.expected = expected
        super().__init__(
            f"The database was created with schema {stored or 'without a fingerprint'},"
            f" but this version of Overnight needs schema {expected}."
            " Before the first release a database cannot be upgraded: it must be created again,"
            " and its tasks are lost."
            " Local stack: run `overnight down --purge`, then `overnight up`."
            " Other databases: drop and create the database, then run `overnight migrate`."
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


def check_schema(tx: Connection) -> None:
    """Raise `SchemaMismatch` if the database was created with another schema."""
    stored = stored_fingerprint(tx)
    if stored != schema_fingerprint():
        raise SchemaMismatch(stored, schema_fingerprint())
