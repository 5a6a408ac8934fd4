"""One real Postgres and one real Redis for a whole test session."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2

from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis

#: Every test makes connections anew, and a password of random bytes needs no stretching.
QUICK_LOGINS = {"scram_iterations": "1"}


@contextmanager
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """Run a Postgres for the length of a session; its guard ends it even if pytest is killed."""
    with (
        _scratch("postgres") as directory,
        EmbeddedPostgres(
            directory, fsync=False, max_connections=200, settings=QUICK_LOGINS
        ) as server,
    ):
        yield server


class Superuser:
    """A connection that lays out databases, opened anew when a test has crashed the server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = self._connected()

    def run(self, command: str) -> None:
        """Run one command outside any transaction."""
        try:
            self._execute("SELECT 1")
        except (psycopg2.OperationalError, psycopg2.InterfaceError):
            self.close()
            self._connection = self._connected()
        self._execute(command)

    def close(self) -> None:
        """Leave the server."""
        self._connection.close()

    def _connected(self) -> psycopg2.extensions.connection:
        connection = psycopg2.connect(self._url)
        connection.autocommit = True
        return connection

    def _execute(self, command: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(command)


@contextmanager
def redis_server() -> Iterator[EmbeddedRedis]:
    """Run a Redis for the length of a session; its guard ends it even if pytest is killed."""
    with _scratch("redis") as directory, EmbeddedRedis(directory) as server:
        yield server


@contextmanager
def _scratch(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        prefix=f"overnight-{name}-", ignore_cleanup_errors=True
    ) as directory:
        # Passable, so that Postgres can reach its data as another user when we are root.
        Path(directory).chmod(0o711)
        yield Path(directory)
