"""The servers of a benchmark: one Postgres and one Redis with their default durability."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg2
import redis

from benchmarks.probes import Probe, Watch
from benchmarks.start_marks import Marks
from overnight_server.local.guarded_program import GuardedProgram, Program
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.store import migrate

ROOT = Path(__file__).parents[1]
CONNECTIONS = 200
TEMPLATE = "ours_template"
LOG_TAIL_CHARACTERS = 3000


class ProgramFailed(Exception):
    """A program of a benchmark failed; the message has its last lines."""


@dataclass
class BenchmarkServers:
    """The two servers, a directory, and the probes of the machine."""

    postgres: EmbeddedPostgres
    redis: EmbeddedRedis
    directory: Path
    probes: list[Probe] = field(default_factory=list)
    _has_template: bool = False

    def database(self, name: str, template: str = "template1") -> str:
        """Create a database, empty without a template; return its address."""
        self.command(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self.command(f"CREATE DATABASE {name} TEMPLATE {template} OWNER overnight")
        return self.postgres.url(name)

    def our_database(self, name: str = "ours") -> str:
        """Copy a migrated database of Overnight; return the address of the copy."""
        if not self._has_template:
            migrate.upgrade(self.database(TEMPLATE))
            self._has_template = True
        return self.database(name, template=TEMPLATE)

    def command(self, sql: str, database: str = "postgres") -> None:
        """Let the superuser do something outside any transaction."""
        connection = psycopg2.connect(self.superuser_url(database))
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(sql)
        finally:
            connection.close()

    def superuser_url(self, database: str) -> str:
        """Address of a database with every right."""
        return self.postgres.superuser_url.rpartition("/")[0] + f"/{database}"

    def vacuum_and_checkpoint(self, database: str) -> None:
        """Give a filled database the statistics and the checkpoint that time would give it."""
        self.command("VACUUM ANALYZE", database)
        self.command("CHECKPOINT", database)

    def flush_redis(self) -> None:
        """Take everything out of Redis."""
        with redis.Redis.from_url(self.redis.url) as client:
            client.flushall()

    def marks(self) -> Marks:
        """Begin a new file of marks."""
        return Marks.anew(self.directory / "marks")

    def watch(self, who: str) -> Watch:
        """Watch the machine for a block, and remember what was seen."""
        watch = Watch(who, self.directory)
        self.probes.append(watch.probe)
        return watch

    @contextmanager
    def running(
        self, name: str, argv: list[str], environment: Mapping[str, str]
    ) -> Iterator[GuardedProgram]:
        """Run a program for the length of a block; nothing of it is left afterwards."""
        log = self.directory / f"{name}.log"
        with log.open("wb") as output:
            process = GuardedProgram(
                Program(
                    argv, env={**clean_environment(), **environment}, cwd=self.directory, grace=5
                ),
                output=output,
            )
        try:
            yield process
        except BaseException:
            print(f"--- {name}\n{self.log_tail(name)}", flush=True)
            raise
        finally:
            process.stop()

    def log_tail(self, name: str) -> str:
        """Return the end of a program's log."""
        return (self.directory / f"{name}.log").read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]


def clean_environment() -> dict[str, str]:
    """Return the environment without settings of a deployment that may run on this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OVERNIGHT_")}
    return kept | {"PYTHONPATH": str(ROOT)}


@contextmanager
def start_servers(*, durable: bool = True) -> Iterator[BenchmarkServers]:
    """Start both servers for a block; only a quick trial may do without durability."""
    with tempfile.TemporaryDirectory(prefix="overbench-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        # Passable, so that Postgres can reach its data as another user when we are root.
        directory.chmod(0o711)
        with (
            EmbeddedPostgres(
                directory / "pg", fsync=durable, max_connections=CONNECTIONS
            ) as postgres,
            EmbeddedRedis(directory / "redis") as broker,
        ):
            yield BenchmarkServers(postgres, broker, directory)
