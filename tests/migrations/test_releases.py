"""Databases of the releases so far: their schema is frozen, and this version migrates them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight_server.domain.results import Returned
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.maintenance.audit import audit_all
from overnight_server.maintenance.sweeps import SWEEPS, run_sweep
from overnight_server.settings import load
from overnight_server.store import migrate
from overnight_server.store.schema_fingerprint import fingerprints
from tests.migrations.schema import lines
from tests.support.deployment import AGENT, Deployment
from tests.support.night import connected
from tests.support.releases import RELEASES, load_release, schema_of

FROZEN = """\
The SQL of revision {revision} is not what {release} has.
If {release} is released, its SQL never changes again: write a migration (CONTRIBUTING, "Add a
migration"). If it is not released yet, run: .venv/bin/python scripts/release_dump.py
"""


@pytest.fixture(params=RELEASES, ids=lambda dump: dump.stem)
def released(
    request: pytest.FixtureRequest, empty_url: str, postgres: EmbeddedPostgres
) -> Iterator[Deployment]:
    """The database of a release, migrated to this version."""
    postgres.cluster.prepare_logins()
    superuser_url = f"{postgres.superuser_url.rpartition('/')[0]}/{empty_url.rpartition('/')[2]}"
    load_release(empty_url, superuser_url, request.param)
    before = rows_of(empty_url)
    migrate.upgrade(empty_url)
    assert rows_of(empty_url) == before
    with connected(empty_url) as deployment:
        yield deployment


def rows_of(url: str) -> dict[str, int]:
    """Return how many rows the tables have that every release has."""
    with connected(url) as deployment:
        names = ("tasks", "dags", "task_edges", "attempts", "events", "usage_ledger", "audit_log")
        counted = {
            name: deployment.one(f"SELECT count(*) AS n FROM {name}")["n"]
            for name in (*names, "dead_letters", "schedules", "webhook_sources", "users")
        }
    assert all(counted.values()), counted
    return counted


@pytest.mark.parametrize("dump", RELEASES, ids=lambda dump: dump.stem)
def test_the_schema_of_a_release_does_not_change(dump: Path) -> None:
    schema = schema_of(dump)

    assert fingerprints().get(schema.revision) == schema.fingerprint, FROZEN.format(
        revision=schema.revision, release=dump.stem
    )


def test_a_migrated_database_has_the_schema_of_a_new_one(
    released: Deployment, database_url: str
) -> None:
    url = released.owner.engine.url.render_as_string(hide_password=False)

    migrate.check(url)
    assert lines(url) == lines(database_url)


def test_the_work_of_a_release_goes_on(released: Deployment, redis: EmbeddedRedis) -> None:
    settings = load({"OVERNIGHT_REDIS_URL": redis.url})
    assert audit_all(released.dispatcher) == 0

    for name in SWEEPS:
        run_sweep(released.dispatcher, settings, name)
    released.agent()
    ready = [row["id"] for row in released.rows("SELECT id FROM tasks WHERE state = 'ready'")]
    claimed = released.claim().claims
    for claim in claimed:
        run = released.start(claim, AGENT)
        assert run is not None
        assert released.settle(run, Returned("done"))

    assert claimed
    assert {one.claim.task_id for one in claimed} <= set(ready)
    assert audit_all(released.dispatcher) == 0
