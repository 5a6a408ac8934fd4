"""Servers for the session, a database for each test."""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count

import psycopg2
import pytest

from overnight_server import telemetry
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.store import migrate
from overnight_server.store.db import ADMIN, DISPATCHER, Db
from tests.support import logins
from tests.support.deployment import Deployment
from tests.support.night import TYPES, Night, connected, play_night
from tests.support.servers import Superuser, postgres_server, redis_server
from tests.support.tested_sandboxes import left_out

TEMPLATE = "template_overnight"
NUMBERS = count(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which sandboxes were not tested; with xdist, the process that reports says it."""
    lines = left_out()
    if lines:
        terminalreporter.section("not tested on this machine")
    for line in lines:
        terminalreporter.line(line)


@pytest.fixture(scope="session", autouse=True)
def _state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A directory for the files of unfinished batches, also of commands in other processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[EmbeddedRedis]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def template(postgres: EmbeddedPostgres, as_superuser: Superuser) -> str:
    """A migrated database that every test's own is copied from."""
    as_superuser.run(f"CREATE DATABASE {TEMPLATE} OWNER overnight")
    migrate.upgrade(postgres.url(TEMPLATE))
    postgres.cluster.prepare_logins()
    logins.remember(postgres)
    return TEMPLATE


@pytest.fixture(scope="session")
def as_superuser(postgres: EmbeddedPostgres) -> Iterator[Superuser]:
    """Lay out databases; one connection serves the whole session."""
    with closing(Superuser(postgres.superuser_url)) as superuser:
        yield superuser


@pytest.fixture
def database_url(
    postgres: EmbeddedPostgres, template: str, as_superuser: Superuser
) -> Iterator[str]:
    """A fresh, migrated database, dropped afterwards."""
    name = f"test_{next(NUMBERS)}"
    # Copying files takes half as long as logging each block; a crash would lose nothing of worth.
    copied = f"TEMPLATE {template} STRATEGY FILE_COPY"
    as_superuser.run(f"CREATE DATABASE {name} OWNER overnight {copied}")
    yield postgres.url(name)
    with suppress(psycopg2.OperationalError):
        as_superuser.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def night_template(
    postgres: EmbeddedPostgres, template: str, as_superuser: Superuser
) -> tuple[str, Night]:
    """A database with a night that was played, and what it has; tests copy it."""
    name = f"{template}_night"
    as_superuser.run(f"CREATE DATABASE {name} OWNER overnight TEMPLATE {template}")
    with connected(postgres.url(name)) as deployment:
        user = deployment.user(name="Ada", is_admin=True, night_budget_usd=12)
        night = play_night(deployment, user)
    return name, night


@pytest.fixture
def night_url(
    postgres: EmbeddedPostgres, night_template: tuple[str, Night], as_superuser: Superuser
) -> Iterator[str]:
    """A copy of the night's database, dropped afterwards."""
    name = f"test_{next(NUMBERS)}"
    copied = f"TEMPLATE {night_template[0]} STRATEGY FILE_COPY"
    as_superuser.run(f"CREATE DATABASE {name} OWNER overnight {copied}")
    yield postgres.url(name)
    with suppress(psycopg2.OperationalError):
        as_superuser.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
def night(night_url: str, night_template: tuple[str, Night]) -> Iterator[Night]:
    """The tasks of one night of the admin Ada, in every state that a page shows."""
    with connected(night_url) as deployment:
        # The worker of the night gives a sign of life when the test begins.
        deployment.agent(slots=4, types=TYPES)
        yield replace(night_template[1], deployment=deployment)


@pytest.fixture
def connect(database_url: str) -> Iterator[Callable[..., Db]]:
    """Open further connection pools to the test's database; all are closed afterwards."""
    opened: list[Db] = []

    def open_one(
        application_name: str = "test", role: str | None = DISPATCHER, pool_size: int = 5
    ) -> Db:
        db = Db.connect(
            database_url, role=role, application_name=application_name, pool_size=pool_size
        )
        opened.append(db)
        return db

    yield open_one
    for db in opened:
        db.close()


@pytest.fixture
def db(connect: Callable[..., Db]) -> Db:
    """The test's database with the dispatcher's rights."""
    return connect()


@pytest.fixture
def app_db(connect: Callable[..., Db]) -> Db:
    """The test's database with the API's admin role: users, keys and everybody's tasks."""
    return connect(role=ADMIN)


@pytest.fixture
def owner_db(connect: Callable[..., Db]) -> Db:
    """The test's database with its owner's rights: for factories and for moving the clock."""
    return connect(role="overnight_owner")


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    """Undo what a test did to logging: the level, and handlers on streams that are closed then."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in root.handlers[:]:
        if isinstance(handler, telemetry._Handler):
            root.removeHandler(handler)


@pytest.fixture
def deployment(owner_db: Db, db: Db, app_db: Db) -> Deployment:
    """The test's deployment, with methods for common steps."""
    return Deployment(owner=owner_db, dispatcher=db, app=app_db)
