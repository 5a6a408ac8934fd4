"""Responses of the API while Postgres or Redis is down."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg2
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.engine import make_url

from overnight import Client
from overnight.errors import Unavailable
from overnight_server.api.main import app, create_app
from overnight_server.control.keys import issue, new_key
from overnight_server.domain.ids import parse_task
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.settings import load
from overnight_server.store.db import Db
from overnight_server.store.sqlstates import find_passing
from overnight_server.wakeups.wake import WakeUpListener
from tests.support.api_user import DEAD_REDIS, NO_FILE, TASKS, serve_api
from tests.support.deployment import Deployment
from tests.support.failing_database import refusing

CLOSED = "postgresql://nobody:secret@127.0.0.1:1/nowhere"


@pytest.fixture
def api_without_database() -> Iterator[TestClient]:
    """The API while nothing listens where its database should be."""
    settings = load(
        {"OVERNIGHT_DATABASE_URL": CLOSED, "OVERNIGHT_REDIS_URL": DEAD_REDIS}, dotenv=NO_FILE
    )
    with TestClient(create_app(settings), raise_server_exceptions=False) as http:
        yield http


def test_without_the_database_every_route_responds_503(
    api_without_database: TestClient,
) -> None:
    headers = {"Authorization": f"Bearer {new_key()}"}
    for method, path in (
        ("POST", TASKS),
        ("GET", TASKS),
        ("GET", f"{TASKS}/queue-status"),
        ("DELETE", f"{TASKS}/task_01J00000000000000000000000"),
    ):
        body = {"title": "a"} if method == "POST" else None
        answer = api_without_database.request(method, path, json=body, headers=headers)

        assert (answer.status_code, answer.json()["code"]) == (503, "DATABASE_UNAVAILABLE")
        assert int(answer.headers["retry-after"]) > 0
        assert "secret" not in answer.text


def test_without_the_database_the_process_is_alive_but_not_ready(
    api_without_database: TestClient,
) -> None:
    health, ready = api_without_database.get("/health"), api_without_database.get("/ready")

    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    assert ready.status_code == 503
    assert ready.json()["ready"] is False
    assert ready.json()["database"] == {"ok": False}
    assert "secret" not in ready.text


def test_a_malformed_key_is_refused_without_the_database(
    api_without_database: TestClient,
) -> None:
    assert api_without_database.get(TASKS, headers={"X-API-Key": "nonsense"}).status_code == 401


def test_a_submit_succeeds_while_redis_is_down(deployment: Deployment, database_url: str) -> None:
    with serve_api(deployment, database_url) as api_user:
        api_user.created()
        ready = api_user.http.get("/ready")

    assert ready.status_code == 200
    assert ready.json()["redis"] == {"ok": False}


def test_a_submit_does_not_wait_for_a_redis_that_never_answers(
    deployment: Deployment, database_url: str
) -> None:
    # A socket that accepts and never responds behaves like a stopped server.
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"redis://127.0.0.1:{deaf.getsockname()[1]}/0"
        with serve_api(deployment, database_url, OVERNIGHT_REDIS_URL=url) as api_user:
            tasks = [api_user.created() for _ in range(3)]
            ready = api_user.http.get("/ready")

    assert len(tasks) == 3
    assert (ready.status_code, ready.json()["redis"]) == (200, {"ok": False})


def test_a_submit_publishes_a_wake_up(
    deployment: Deployment, database_url: str, redis: EmbeddedRedis
) -> None:
    listener, never = WakeUpListener(redis.url), threading.Event()
    listener.wait(5, never)  # a new subscription counts as a wake-up
    with serve_api(deployment, database_url, OVERNIGHT_REDIS_URL=redis.url) as api_user:
        api_user.created()
        heard = listener.wait(10, never)
    listener.close()

    assert heard


def test_an_api_without_redis_accepts_tasks(deployment: Deployment, database_url: str) -> None:
    settings = load({"OVERNIGHT_DATABASE_URL": database_url}, dotenv=NO_FILE)
    key = issue(deployment.app, deployment.user(), name="test")

    with TestClient(create_app(settings)) as http:
        answer = http.post(TASKS, json={"title": "a"}, headers={"X-API-Key": key})

    assert answer.status_code == 201


def test_the_factory_builds_the_api_from_the_environment(
    deployment: Deployment, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERNIGHT_DATABASE_URL", database_url)

    with TestClient(app()) as http:
        assert http.get("/ready").status_code == 200


def test_an_api_without_a_database_address_does_not_start() -> None:
    with pytest.raises(ValueError, match="OVERNIGHT_DATABASE_URL"):
        create_app(load({}, dotenv=NO_FILE))


def test_readiness_reports_every_part(
    deployment: Deployment, database_url: str, redis: EmbeddedRedis
) -> None:
    deployment.agent(slots=4)
    with serve_api(deployment, database_url, OVERNIGHT_REDIS_URL=redis.url) as api_user:
        ready = api_user.http.get("/ready")

    assert ready.status_code == 200
    assert ready.json()["ready"] is True
    assert ready.json()["migrations"]["current"] == ready.json()["migrations"]["head"]
    assert ready.json()["redis"] == {"ok": True}
    assert ready.json()["workers"] == {"ok": True, "workers": 1, "slots": 4}


def test_an_outdated_schema_is_not_ready(
    deployment: Deployment, database_url: str, connect: Callable[..., Db]
) -> None:
    other = "overnight schema 0123456789ab at 0000 serves 0123456789ab"
    _as_login(connect, f"COMMENT ON TABLE alembic_version IS '{other}'")
    with serve_api(deployment, database_url) as api_user:
        ready = api_user.http.get("/ready")

    assert ready.status_code == 503
    assert ready.json()["migrations"]["ok"] is False


def test_connections_cut_by_the_server_are_replaced(
    deployment: Deployment, database_url: str, postgres: EmbeddedPostgres
) -> None:
    with serve_api(deployment, database_url) as api_user:
        api_user.created()
        _cut_the_api(postgres, database_url)

        answers = [api_user.create().status_code for _ in range(3)]

    assert answers == [201, 201, 201]


def test_an_unexpected_error_is_reported_without_details(
    deployment: Deployment, database_url: str
) -> None:
    with serve_api(deployment, database_url) as api_user:
        deployment.run("ALTER TABLE tasks RENAME COLUMN title TO label")
        answer = api_user.create()

    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL_ERROR")
    assert "label" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


PASSING = [
    *("08006", "25006", "40001", "40P01", "53100", "53200", "53300", "53400", "55P03", "57014"),
    *("57P01", "57P02", "57P03", "57P05", "58030"),
]


def test_every_error_of_postgres_that_passes_gets_503(
    deployment: Deployment, database_url: str
) -> None:
    unexpected = []
    with serve_api(deployment, database_url) as api_user:
        task = api_user.created()["id"]
        requests: list[tuple[str, str, object]] = [
            ("POST", TASKS, {"title": "a task"}),
            ("POST", "/api/v1/dags", {"title": "g", "tasks": [{"name": "a", "title": "a"}]}),
            ("GET", f"{TASKS}/{task}/wait?timeout=0", None),
            ("GET", f"{TASKS}/forecast", None),
            ("GET", f"{TASKS}/{task}/explain", None),
            ("DELETE", f"{TASKS}/{task}", None),
            ("POST", "/api/v1/agents", {"name": "laptop"}),
        ]
        for sqlstate in [*PASSING, "42501", "XX000"]:
            expected = 503 if sqlstate in PASSING else 500
            with refusing(deployment, sqlstate):
                for method, path, body in requests:
                    answer = api_user.request(method, path, json=body)
                    waits = int(answer.headers.get("retry-after", 0)) > 0
                    if answer.status_code != expected or waits != (expected == 503):
                        unexpected.append((sqlstate, method, path, answer.text))
        assert api_user.create().status_code == 201

    assert unexpected == []
    assert all(find_passing(sqlstate) for sqlstate in PASSING)


def test_the_client_repeats_a_create_until_the_disk_has_room(
    deployment: Deployment, database_url: str
) -> None:
    with serve_api(deployment, database_url) as api_user, ExitStack() as outage:
        outage.enter_context(refusing(deployment, "53100"))
        waits = []

        def end_outage(seconds: float) -> None:
            waits.append(seconds)
            outage.close()

        url, transport = str(api_user.http.base_url), api_user.http._transport
        client = Client(url, api_user.key, transport=transport, sleep=end_outage)
        task = client.tasks.create("a task")

    # The response said when to send again.
    assert len(waits) == 1
    assert waits[0] >= Unavailable().retry_after
    assert deployment.rows("SELECT id FROM tasks") == [{"id": parse_task(task.id)}]


def _as_login(connect: Callable[..., Db], sql: str) -> None:
    """Run a statement with the rights of the login itself, not of one of its roles."""
    with connect(role=None).engine.begin() as tx:
        tx.execute(text(sql))


def _cut_the_api(postgres: EmbeddedPostgres, database_url: str) -> None:
    """End the API's connections; only a superuser may end those of another login."""
    root = psycopg2.connect(postgres.superuser_url)
    try:
        with root, root.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = %s AND application_name = 'overnight-api'",
                [make_url(database_url).database],
            )
            assert cursor.rowcount
    finally:
        root.close()


def test_a_busy_database_puts_no_payload_into_the_log(
    deployment: Deployment, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = {"name": "b", "title": "b", "payload": {"pin": "s3cr3t-0815"}}
    with serve_api(deployment, database_url) as api_user:
        dag = api_user.created()["dag_id"]
        path = f"/api/v1/dags/{dag}/triggers"
        holder = psycopg2.connect(database_url)
        try:
            with holder.cursor() as cursor:
                cursor.execute("SET ROLE overnight_owner")
                cursor.execute("LOCK TABLE dag_triggers IN SHARE MODE")
            answer = api_user.request("POST", path, json={"graph": {"title": "g", "tasks": [task]}})
        finally:
            holder.close()

    assert answer.status_code == 503, answer.text
    assert "lock timeout" in caplog.text
    assert "s3cr3t" not in caplog.text
