"""The fingerprints of the schema, by which a process knows whether it can use a database.

The schema of 0.1.0 is the baseline (`schema/`), and each later migration has one SQL file beside
its module. The fingerprint of a revision is a hash of all SQL up to it. The comment of Alembic's
table holds the fingerprint and the revision of the database, and the fingerprints that it serves:
its own, and those of earlier revisions whose processes can go on with it. Every process looks for
its own among these when it starts, and again while it runs (`schema_watch`).
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sqlalchemy import Connection

VERSIONS = Path(__file__).parent / "migrations" / "versions"
SCHEMA = VERSIONS / "schema"
BASELINE = "0001"
_SQL_COMMENT = re.compile(r"--.*$", re.MULTILINE)
_STORED = re.compile(r"overnight schema (\w+)(?: at (\w+) serves (.+))?")
_NOBODY = "nobody"

_MIGRATE = (
    "Run `overnight migrate` of this version. docs/operations/upgrade.md says in which order the"
    " processes are replaced."
)
_UPGRADE_PROCESS = (
    "Start the processes of the version that migrated the database, or restore the backup from"
    " before the migration. docs/operations/upgrade.md describes both."
)
#: A database from before 0.1.0, when the schema still changed in place.
_CREATE_AGAIN = (
    "A database from before the first release cannot be upgraded: create it again; its tasks are"
    " lost. Local stack: run `overnight down`, delete the directory `postgres` in its home"
    " (`.overnight` by default), run `overnight up`. Other databases: run `dropdb` and `createdb`,"
    " then `overnight migrate`."
)


@dataclass(frozen=True)
class StoredSchema:
    """What a database says about its schema; a process may use it if its schema is in `serves`."""

    fingerprint: str | None = None
    revision: str | None = None
    serves: frozenset[str] = frozenset()


class SchemaMismatch(Exception):
    """A database does not serve the schema that this version needs; `advice` says what to do."""

    def __init__(self, stored: StoredSchema) -> None:
        self.stored = stored
        found = stored.fingerprint or "without a fingerprint"
        reason, self.advice = "was created by another version of Overnight", _CREATE_AGAIN
        if stored.fingerprint in fingerprints().values():
            reason, self.advice = "was created by an earlier version of Overnight", _MIGRATE
            if stored.fingerprint not in stored.serves:
                reason = "is being migrated to a version that this one cannot share it with"
                self.advice = f"{_MIGRATE} {_UPGRADE_PROCESS}"
        elif (stored.revision or "") > max(fingerprints()):
            reason, self.advice = "was migrated by a later version of Overnight", _UPGRADE_PROCESS
        super().__init__(
            f"the database {reason}: it has schema {found}, and this version needs schema"
            f" {schema_fingerprint()}"
        )


@cache
def fingerprints() -> Mapping[str, str]:
    """Return the fingerprint of each revision, oldest first; comments and blanks do not count."""
    found = {BASELINE: _hash(_statements(file) for file in sorted(SCHEMA.glob("*.sql")))}
    for file in sorted(VERSIONS.glob("*.sql")):
        *_, before = found.values()
        found[file.name.partition("_")[0]] = _hash([before, _statements(file)])
    return found


def schema_fingerprint() -> str:
    """Return the fingerprint of the schema that this version needs."""
    *_, newest = fingerprints().values()
    return newest


def _statements(file: Path) -> str:
    return " ".join(_SQL_COMMENT.sub("", file.read_text()).split())


def _hash(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
    return digest.hexdigest()[:12]


def store_schema(tx: Connection, revision: str, serves: Iterable[str]) -> None:
    """Store what the database is at from now on, and which schemas it serves."""
    served = " ".join(serves) or _NOBODY
    tx.exec_driver_sql(
        "COMMENT ON TABLE alembic_version IS"
        f" 'overnight schema {fingerprints()[revision]} at {revision} serves {served}'"
    )


def stored_schema(tx: Connection) -> StoredSchema:
    """Return what the database says about its schema."""
    comment = tx.exec_driver_sql(
        "SELECT obj_description(to_regclass('alembic_version'), 'pg_class')"
    ).scalar_one()
    found = _STORED.fullmatch(comment or "")
    if found is None:
        return StoredSchema()
    fingerprint, revision, serves = found.groups()
    return StoredSchema(fingerprint, revision, frozenset((serves or fingerprint).split()))


def check_schema(tx: Connection) -> bool:
    """Raise `SchemaMismatch` if the database does not serve the schema of this version.

    Return False for an empty database, which passes: the migration has not run yet. A database is
    empty without our tables and without a revision.
    """
    stored = stored_schema(tx)
    if schema_fingerprint() in stored.serves and _has_tables(tx):
        return True
    if _has_tables(tx) or _has_revision(tx):
        raise SchemaMismatch(stored)
    return False


def check_origin(tx: Connection, revision: str) -> None:
    """Raise `SchemaMismatch` if a database at a known revision has not our schema of it."""
    stored = stored_schema(tx)
    if stored.fingerprint != fingerprints()[revision]:
        raise SchemaMismatch(stored)


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
