"""Databases as an operator first meets them: empty."""

from collections.abc import Iterator
from itertools import count

import pytest

from overnight_server.local.postgres import EmbeddedPostgres
from tests.support.servers import Superuser

NUMBERS = count(1)


@pytest.fixture
def empty_url(postgres: EmbeddedPostgres, as_superuser: Superuser) -> Iterator[str]:
    """An empty database of the application's own login, dropped afterwards."""
    name = f"empty_{next(NUMBERS)}"
    as_superuser.run(f"CREATE DATABASE {name} OWNER overnight")
    yield postgres.url(name)
    as_superuser.run(f"DROP DATABASE {name} WITH (FORCE)")
