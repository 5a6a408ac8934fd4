"""A secret given by reference reaches its handler and nothing else, however careless that is."""

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from overnight_server.domain.ids import parse_task
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.mask import mask_names
from tests.support.deployment import Deployment
from tests.support.stack import Stack
from tests.support.wait import wait_until

CANARY = 'canary/7"f3a9+Zq=never&told'
FORMS = (CANARY, quote(CANARY, safe=""), base64.b64encode(CANARY.encode()).decode().rstrip("="))


def _told(text: str) -> bool:
    # A database or a log writes the quotation mark with a backslash.
    plain = text.replace("\\", "")
    return any(form in plain for form in FORMS)


def _tables(deployment: Deployment) -> dict[str, str]:
    names = deployment.rows(
        "SELECT relname AS name FROM pg_class"
        " WHERE relkind IN ('r', 'p') AND NOT relispartition"
        " AND relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'"
    )
    return {
        row["name"]: "\n".join(
            one["row"] for one in deployment.rows(f"SELECT t::text AS row FROM {row['name']} t")
        )
        for row in names
    }


def test_a_secret_by_reference_is_stored_nowhere(
    build: Callable[..., Stack],
    deployment: Deployment,
    redis: EmbeddedRedis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_CANARY", CANARY)
    stack = build(handlers="tests.support.leak_handler", log_level="debug")
    stack.start("api", "dispatcher", "maintenance", "beat", "worker").ready()
    _, client = stack.user()

    task = client.tasks.create(
        "sign in", type="leaky", payload={"login": {"token": "secret:CANARY", "name": "ada"}}
    )
    lost = client.tasks.create(
        "no such", type="leaky", payload={"login": {"token": "secret:NOBODYS"}}
    )
    ours = client.tasks.create(
        "not to be had", type="leaky", payload={"login": {"token": "secret:OVERNIGHT_DATABASE_URL"}}
    )
    for one in (task, lost, ours):
        row = parse_task(one.id)
        wait_until(lambda row=row: deployment.row(row)["finished_at"], timeout=60, what="an end")

    # It did arrive.
    row = deployment.row(parse_task(task.id))
    assert row["state"] == "completed", row["error"]
    assert row["output"]["digest"] == hashlib.sha256(CANARY.encode()).hexdigest()
    assert row["result_summary"] == "signed in with ***"
    assert row["payload"]["login"]["token"] == "secret:CANARY"
    for refused in (lost, ours):
        ended = deployment.row(parse_task(refused.id))
        assert (ended["state"], ended["attempts"]) == ("dead_lettered", 1)
        assert "this worker has no secret" in ended["error"]

    # And it is nowhere else.
    tables = _tables(deployment)
    assert "secret:CANARY" in tables["tasks"]
    assert "was not accepted" in tables["attempts"]
    for line in ("signing in with ***", "printed ***", "complained ***"):
        assert line in tables["log_chunks"]
    assert [name for name, text in tables.items() if _told(text)] == []
    logs = {path.name: path.read_text(errors="replace") for path in tmp_path.glob("*.log")}
    assert "signing in with ***" in logs["worker.log"]
    assert "printed ***" in logs["worker.log"]
    assert "complained ***" in logs["worker.log"]
    assert [name for name, text in logs.items() if _told(text)] == []
    answers = [
        client.transport.http.get(path).text
        for path in (
            f"/api/v1/tasks/{task.id}",
            "/api/v1/tasks",
            f"/api/v1/tasks/{task.id}/explain",
        )
    ]
    assert "secret:CANARY" in answers[0]
    assert [answer for answer in answers if _told(answer)] == []
    # Redis writes down every command that changed anything.
    written = [path for path in (redis.directory / "redis").rglob("*") if path.is_file()]
    assert written
    assert [path.name for path in written if _told(path.read_text(errors="replace"))] == []


def test_values_of_secret_names_are_masked() -> None:
    shown = mask_names({"password": "hunter2", "api_key": None, "token": "secret:X", "tokens": 3})

    assert shown == {"password": "***", "api_key": None, "token": "secret:X", "tokens": 3}
