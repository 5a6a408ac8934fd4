"""One real Postgres and one real Redis for a whole test session."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.local.postgres import EmbeddedPostgres
from app.local.redis import EmbeddedRedis


@contextmanager
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """Run a Postgres for the length of a session; its guard ends it even if pytest is killed."""
    with (
        _scratch("postgres") as directory,
        EmbeddedPostgres(directory, fsync=False, max_connections=200) as server,
    ):
        yield server


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
