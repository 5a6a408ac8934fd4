"""Each failed check of the doctor says what to do; no check shows a password."""

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from redis import Redis
from sqlalchemy import func, insert, select, update

from overnight.models.enums import PlanTier
from overnight_server.control import agents, http_agents
from overnight_server.control.agents import PullAgentDescription
from overnight_server.control.keys import Caller
from overnight_server.control.users import create_user
from overnight_server.local.doctor import CHECKS, Check, run_checks
from overnight_server.local.home import Home
from overnight_server.local.postgres import API_LOGIN, EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.settings import Settings, load
from overnight_server.store import migrate
from overnight_server.store.db import DISPATCHER, Db
from overnight_server.store.models import AgentRow, SweepRunRow
from overnight_server.store.statements import statement
from tests.support.servers import postgres_server, redis_server


@pytest.fixture(scope="module")
def postgres() -> Iterator[EmbeddedPostgres]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def redis() -> Iterator[EmbeddedRedis]:
    with redis_server() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / ".overnight")
    home.prepare()
    return home


def settings(home: Home, **names: str) -> Settings:
    environ = {f"OVERNIGHT_{name.upper()}": value for name, value in names.items()}
    return load({"OVERNIGHT_HOME": str(home.path)} | environ)


def results(chosen: Settings) -> dict[str, Check]:
    return {check.name: check for check in run_checks(chosen)}


def failed(checks: dict[str, Check]) -> set[str]:
    return {name for name, check in checks.items() if not check.ok}


def test_without_a_running_stack_each_failed_check_names_overnight_up(home: Home) -> None:
    checks = results(settings(home))

    assert list(checks) == list(CHECKS)
    assert failed(checks) == {
        "postgres",
        "migrations",
        "roles",
        "redis",
        "api",
        "dispatcher",
        "workers",
        "handlers",
        "agent driver",
        "notifier",
        "beat",
        "audit",
        "flower",
    }
    assert all("overnight up" in checks[name].advice for name in failed(checks))
    assert not any(check.advice for check in checks.values() if check.ok)


def test_servers_without_a_schema_ask_for_the_migration(
    home: Home, postgres: EmbeddedPostgres, redis: EmbeddedRedis
) -> None:
    chosen = settings(home, database_url=postgres.url(), redis_url=redis.url)

    checks = results(chosen)

    assert {"migrations", "roles", "dispatcher", "workers", "beat"} <= failed(checks)
    assert {"postgres", "redis"}.isdisjoint(failed(checks))
    assert checks["migrations"].advice == "run `overnight migrate`"


def test_a_migrated_database_with_a_live_worker_and_beat_passes_its_checks(
    home: Home, postgres: EmbeddedPostgres, redis: EmbeddedRedis
) -> None:
    migrate.upgrade(postgres.url())
    chosen = settings(home, database_url=postgres.url(), redis_url=redis.url)
    db = Db.connect(postgres.url(), role=DISPATCHER)
    assert {"workers", "beat"} <= failed(results(chosen))

    db.atomically(
        lambda tx: (
            tx.execute(statement("ensure_pool"), {"pool": "doctors"}),
            tx.execute(insert(AgentRow).values(id="a:1:b", pool="doctors", slots=1)),
            tx.execute(insert(SweepRunRow).values(name="reap", started_at=func.clock())),
        )
    )

    assert failed(results(chosen)) == {"dispatcher"}

    finding = {
        "check_name": "events",
        "subject": str(uuid4()),
        "user_id": None,
        "detail": "{}",
        "repaired": False,
        "max_open": 1,
    }
    finding_id = db.atomically(
        lambda tx: tx.execute(statement("record_finding"), finding).scalar_one()
    )
    audit = results(chosen)["audit"]
    assert (audit.ok, audit.detail) == (False, "1 open findings: rows contradict each other")
    assert audit.advice == "see `overnight audit findings`"
    gone = {"finding_id": finding_id, "gone": True}
    db.atomically(lambda tx: tx.execute(statement("update_finding"), gone))
    assert results(chosen)["audit"].ok

    db.atomically(lambda tx: tx.execute(update(AgentRow).values(dropped_messages=3)))
    assert "3 messages dropped" in results(chosen)["workers"].detail
    db.atomically(lambda tx: tx.execute(statement("mark_worker_deaf"), {"id": "a:1:b"}))
    assert results(chosen)["workers"].detail == "a:1:b reads no messages from Redis"
    db.atomically(lambda tx: tx.execute(update(AgentRow).values(deaf_since=None)))

    db.atomically(lambda tx: tx.execute(update(AgentRow).values(status="draining")))
    workers = results(chosen)["workers"]
    assert workers.detail == "no worker accepts tasks, 1 draining"
    assert workers.advice.startswith("`overnight drain a:1:b --undo`")

    db.atomically(lambda tx: tx.execute(update(AgentRow).values(last_heartbeat_at="epoch")))
    db.atomically(lambda tx: tx.execute(update(SweepRunRow).values(started_at="epoch")))
    db.close()
    assert {"workers", "beat"} <= failed(results(chosen))


def test_parts_that_run_elsewhere_are_not_checked(
    tmp_path: Path, postgres: EmbeddedPostgres
) -> None:
    migrate.upgrade(postgres.url())
    postgres.cluster.prepare_logins()
    nowhere = Home(tmp_path / "none")
    db = Db.connect(postgres.url(), role=DISPATCHER)
    db.atomically(
        lambda tx: tx.execute(insert(SweepRunRow).values(name="promote", started_at=func.clock()))
    )
    db.close()

    api_only = results(settings(nowhere, database_url=postgres.url(login=API_LOGIN)))
    client_only = results(settings(nowhere, url="http://127.0.0.1:9"))

    # What the database shows is checked with the API's login too.
    assert failed(api_only) == {"dispatcher", "workers"}
    assert api_only["workers"].detail == "no worker is live"
    assert failed(client_only) == {"api"}
    for checks, name, setting in (
        (api_only, "api", "OVERNIGHT_URL"),
        (api_only, "redis", "OVERNIGHT_REDIS_URL"),
        (client_only, "postgres", "OVERNIGHT_DATABASE_URL"),
    ):
        assert checks[name].detail == f"not checked: {setting} is not set on this machine"
    assert not nowhere.path.exists()


def test_a_dispatcher_is_found_by_its_connection(home: Home, postgres: EmbeddedPostgres) -> None:
    chosen = settings(home, database_url=postgres.url())
    missing = results(chosen)["dispatcher"]
    assert (missing.ok, missing.detail) == (False, "no dispatcher is connected")
    assert "`overnight dispatcher`" in missing.advice

    dispatcher = Db.connect(postgres.url(), application_name="overnight-dispatcher")
    dispatcher.atomically(lambda tx: tx.scalar(select(func.now())))
    there = results(chosen)["dispatcher"]
    assert there.ok, there
    assert there.detail.startswith("last query ")

    hasty = settings(
        home, database_url=postgres.url(), poll_interval="0.001", allow_short_clocks="true"
    )
    silent = results(hasty)["dispatcher"]
    assert silent.detail.startswith("no dispatcher has queried for")
    assert silent.advice == "restart `overnight dispatcher`"

    dispatcher.close()
    assert not results(chosen)["dispatcher"].ok


def test_http_agents_need_a_driver_and_the_doctor_says_which_command_starts_it(
    home: Home, postgres: EmbeddedPostgres
) -> None:
    migrate.upgrade(postgres.url())
    chosen = settings(home, database_url=postgres.url())
    assert results(chosen)["agent driver"].detail == "not needed, there are no HTTP agents"

    owner = Db.connect(postgres.url(), role="overnight_owner")
    user = create_user(owner, name="ada", plan=PlanTier.TEAM)
    http_agents.add(
        owner,
        Caller(user, "", ("*",), is_admin=True),
        PullAgentDescription("scribe", types=["shout"], stale_after=timedelta(seconds=90)),
        "http://127.0.0.1:9",
    )
    missing = results(chosen)["agent driver"]
    assert missing.detail == "no agent driver is connected, so 1 HTTP agents get no tasks"
    assert "`overnight agent-driver`" in missing.advice

    driver = Db.connect(postgres.url(), application_name="overnight-agent-driver")
    driver.atomically(lambda tx: tx.scalar(select(func.now())))
    assert results(chosen)["agent driver"].detail == "connected, 1 HTTP agents"

    hasty = settings(
        home, database_url=postgres.url(), worker_liveness="0.001", allow_short_clocks="true"
    )
    assert results(hasty)["agent driver"].advice == "restart `overnight agent-driver`"

    driver.close()
    assert not results(chosen)["agent driver"].ok
    agents.leave(owner, user, next(iter(_agents(owner))))
    assert results(chosen)["agent driver"].ok
    owner.close()


def _agents(db: Db) -> list[str]:
    return db.atomically(
        lambda tx: list(tx.scalars(select(AgentRow.id).where(AgentRow.name == "scribe")))
    )


def test_unreachable_servers_are_named_without_their_passwords(home: Home) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        checks = results(
            settings(
                home,
                database_url=f"postgresql://overnight:hunter2@127.0.0.1:{port}/overnight",
                redis_url=f"redis://:hunter2@127.0.0.1:{port}/0",
                url=f"http://127.0.0.1:{port}",
            )
        )

    assert {"postgres", "migrations", "roles", "redis", "api"} <= failed(checks)
    assert "OVERNIGHT_DATABASE_URL" in checks["postgres"].advice
    assert "OVERNIGHT_REDIS_URL" in checks["redis"].advice
    assert "hunter2" not in str(checks)


def test_a_redis_that_evicts_keys_fails_its_check(home: Home, redis: EmbeddedRedis) -> None:
    with Redis.from_url(redis.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            check = results(settings(home, redis_url=redis.url))["redis"]
        finally:
            client.config_set("maxmemory-policy", "noeviction")

    assert not check.ok
    assert "noeviction" in check.advice


def test_a_home_that_others_can_read_fails_its_check(home: Home) -> None:
    assert results(settings(home))["home"].ok

    (home.path / "credentials.json").write_text("{}")
    (home.path / "credentials.json").chmod(0o644)

    check = results(settings(home))["home"]
    assert not check.ok
    assert "credentials.json" in check.detail


def test_missing_programs_are_named(home: Home, tmp_path: Path) -> None:
    chosen = settings(home, pg_bin=str(tmp_path), redis_bin=str(tmp_path / "none"))

    checks = results(chosen)

    assert "OVERNIGHT_PG_BIN" in checks["postgres programs"].detail
    assert "OVERNIGHT_REDIS_BIN" in checks["redis program"].detail


def test_a_missing_home_fails_its_check_and_is_not_created(tmp_path: Path) -> None:
    checks = results(load({"OVERNIGHT_HOME": str(tmp_path / "none")}))

    assert "home" in failed(checks)
    assert checks["disk space"].ok
    assert not os.path.lexists(tmp_path / "none")
