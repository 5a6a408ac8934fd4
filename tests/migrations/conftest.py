"""Databases as an operator first meets them: empty."""

from collections.abc import Iterator

import psycopg2
import pytest

from app.local.postgres import EmbeddedPostgres


@pytest.fixture
def empty_url(postgres: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database of the application's own login, dropped afterwards."""
    name = f"empty_{abs(hash(request.node.nodeid)):x}"
    _as_superuser(postgres, f"CREATE DATABASE {name} OWNER overnight")
    yield postgres.url(name)
    _as_superuser(postgres, f"DROP DATABASE {name} WITH (FORCE)")


def _as_superuser(postgres: EmbeddedPostgres, command: str) -> None:
    connection = psycopg2.connect(postgres.superuser_url)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            cursor.execute(command)
    finally:
        connection.close()
