"""Databases of former releases, and a version after this one with migrations of its own."""

import io
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psycopg2
from alembic import command

from overnight_server.store import migrate

ROOT = Path(__file__).parents[2]
RELEASES = sorted((ROOT / "tests" / "migrations" / "releases").glob("*.sql"))
SCHEMA = re.compile(r"\A-- schema (\w+) at (\w+)\n")
ROWS = re.compile(r"^(COPY .*;)\n((?:.*\n)*?)\\\.$", re.MULTILINE)
NUMBERS = re.compile(r"^SELECT pg_catalog\.setval\(.*\);$", re.MULTILINE)
TABLES = """
    SELECT string_agg(format('%I', relname), ', ') FROM pg_class
     WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
       AND relname NOT IN ('alembic_version', 'expected_rights')
"""


class ReleasedSchema(NamedTuple):
    """The schema that a release had, as the first line of its dump says."""

    fingerprint: str
    revision: str


def schema_of(dump: Path) -> ReleasedSchema:
    """Return the schema that the dump of a release names."""
    found = SCHEMA.match(dump.read_text(encoding="utf-8"))
    assert found, f"{dump} names no schema"
    return ReleasedSchema(*found.groups())


def load_release(url: str, superuser_url: str, dump: Path) -> None:
    """Turn an empty database into one of a release, with the rows of its dump."""
    text, revision = dump.read_text(encoding="utf-8"), schema_of(dump).revision
    with migrate._connected(url) as connection:
        command.upgrade(migrate._config(connection), revision)
    with closing(psycopg2.connect(superuser_url)) as superuser, superuser.cursor() as cursor:
        # Triggers have fired, and foreign keys were checked, when the rows were first written.
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(TABLES)
        [(tables,)] = cursor.fetchall()
        cursor.execute(f"TRUNCATE {tables}")
        for statement, rows in ROWS.findall(text):
            cursor.copy_expert(statement, io.StringIO(rows))
        for statement in NUMBERS.findall(text):
            cursor.execute(statement)
        superuser.commit()


@dataclass(frozen=True)
class LaterVersion:
    """A copy of the sources, to which a test adds migrations; its commands are real processes."""

    place: Path

    @classmethod
    def copy_to(cls, place: Path) -> "LaterVersion":
        """Copy what the commands and the script for migrations need."""
        for name in ("app", "overnight", "workers", "scripts"):
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        return cls(place)

    def add_migration(
        self, message: str, sql: str, *, step: str = "run_sql", serves_older: bool = True
    ) -> None:
        """Write a migration as the recipe of CONTRIBUTING says."""
        done = self._run(str(self.place / "scripts" / "migration.py"), message)
        module, file = map(Path, done.stdout.splitlines()[-2:])
        text = module.read_text().replace("run_sql", step)
        module.write_text(text.replace("serves_older = True", f"serves_older = {serves_older}", 1))
        file.write_text(file.read_text() + sql)

    def migrate(self, url: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run `overnight migrate`."""
        command = self._command("migrate", *options)
        return self._run(*command, check=False, OVERNIGHT_DATABASE_URL=url)

    def begin_migrate(self, url: str) -> subprocess.Popen[str]:
        """Start `overnight migrate`; the test waits for its end, or ends it."""
        return subprocess.Popen(
            [sys.executable, *self._command("migrate")],
            env=self._environment(OVERNIGHT_DATABASE_URL=url),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def restore(self, file: Path, home: Path) -> subprocess.CompletedProcess[str]:
        """Run `overnight restore` for a home."""
        command = self._command("restore", str(file))
        return self._run(*command, check=False, OVERNIGHT_HOME=str(home))

    def fingerprint(self, revision: str) -> str:
        """Return the fingerprint that a revision has in this version."""
        ask = "from overnight_server.store.schema_fingerprint import fingerprints as f; print(f()"
        return self._run("-c", f"{ask}[{revision!r}])").stdout.strip()

    def _command(self, *arguments: str) -> list[str]:
        return ["-m", "overnight_server.cli.main", *arguments]

    def _run(
        self, *arguments: str, check: bool = True, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env=self._environment(**environ),
            check=check,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def _environment(self, **environ: str) -> dict[str, str]:
        sources = os.pathsep.join(str(self.place / name) for name in ("", "app", "workers"))
        kept = {name: value for name, value in os.environ.items() if "OVERNIGHT_" not in name}
        return {**kept, "PYTHONPATH": sources, **environ}


#: The three ways in which a migration can run, in the order that a change of a large table needs.
COLOURS = (
    (
        "let a task have a colour",
        """
        ALTER TABLE tasks ADD COLUMN colour text;
        CREATE TABLE colours (
            user_id uuid NOT NULL REFERENCES users (id),
            name text NOT NULL,
            PRIMARY KEY (user_id, name)
        );
        ALTER TABLE colours ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
        CREATE POLICY own_rows ON colours TO overnight_app USING (user_id = current_user_id());
        GRANT SELECT ON colours TO overnight_app;
        """,
        "run_sql",
    ),
    (
        "give old tasks a colour",
        """
        UPDATE tasks SET colour = 'grey'
         WHERE id IN (SELECT id FROM tasks WHERE colour IS NULL ORDER BY id LIMIT 5);
        """,
        "run_in_batches",
    ),
    (
        "find tasks by their colour",
        "CREATE INDEX CONCURRENTLY tasks_colour ON tasks (user_id, colour);\n",
        "build_index",
    ),
)


def with_colours(place: Path) -> LaterVersion:
    """Return a version with three migrations more than this one, which all serve this one."""
    later = LaterVersion.copy_to(place)
    for message, sql, step in COLOURS:
        later.add_migration(message, sql, step=step)
    return later
