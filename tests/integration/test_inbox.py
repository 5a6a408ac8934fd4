"""The inbox: a task exists if its program committed, exactly once, whatever dies in between."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import psycopg2
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from overnight import errors, inbox
from overnight_server.cli.main import app
from overnight_server.control.keys import issue, revoke
from overnight_server.domain.ids import UserId
from overnight_server.intake.inbox import BATCH, DELAY_SECONDS, process_inbox
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.settings import Settings, load
from overnight_server.store import pass_limit
from overnight_server.store.db import Db, driver_url
from tests.rules.test_docs import blocks
from tests.support.deployment import Deployment
from tests.support.rivals import Rival, queue_up
from tests.support.workers import ROOT

SHOP = "shop"
SETTINGS = load({})


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    return deployment.user()


@pytest.fixture
def key(deployment: Deployment, user: UserId) -> str:
    return issue(deployment.app, user, name="shop")


@pytest.fixture
def shop(postgres: EmbeddedPostgres, database_url: str, deployment: Deployment) -> Iterator[Engine]:
    """A program of its own in the same database, with a role that has no rights of ours."""
    deployment.run(
        "DO $$ BEGIN CREATE TABLE orders (id int PRIMARY KEY);"
        " EXCEPTION WHEN duplicate_table THEN NULL; END $$"
    )
    _superuser(
        postgres,
        f"DO $$ BEGIN CREATE ROLE {SHOP} LOGIN PASSWORD 'shop';"
        " EXCEPTION WHEN duplicate_object THEN NULL; END $$",
    )
    deployment.run(f"GRANT SELECT, INSERT ON orders TO {SHOP}")
    address = create_engine(driver_url(database_url)).url.set(username=SHOP, password="shop")
    engine = create_engine(address)
    yield engine
    engine.dispose()


def _superuser(postgres: EmbeddedPostgres, command: str) -> None:
    connection = psycopg2.connect(postgres.superuser_url)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(command)
    connection.close()


def titles(deployment: Deployment) -> list[str]:
    return [row["title"] for row in deployment.rows("SELECT title FROM tasks ORDER BY id")]


def left(deployment: Deployment, number: int) -> dict[str, Any]:
    return dict(deployment.one("SELECT * FROM inbox WHERE id = :id", id=number))


def sweep(deployment: Deployment, settings: Settings = SETTINGS) -> int:
    return process_inbox(deployment.dispatcher, settings)


def test_a_committed_inbox_row_becomes_a_task_once(
    deployment: Deployment, shop: Engine, user: UserId, key: str
) -> None:
    with shop.begin() as tx:
        tx.execute(text("INSERT INTO orders VALUES (1)"))
        row = inbox.submit(tx, "ship it", api_key=key, type="echo", payload={"order": 1})

    assert (sweep(deployment), sweep(deployment)) == (1, 0)

    [task] = deployment.rows("SELECT * FROM tasks")
    assert (task["title"], task["user_id"], task["source"]) == ("ship it", user, "inbox")
    assert task["payload"] == {"order": 1}
    assert task["state"] == "ready"
    assert (left(deployment, row)["outcome"], left(deployment, row)["task_id"]) == (
        "accepted",
        task["id"],
    )


def test_a_rolled_back_inbox_row_becomes_no_task(
    deployment: Deployment, shop: Engine, key: str
) -> None:
    with shop.connect() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1)"))
        inbox.submit(connection, "never", api_key=key)
        connection.rollback()

    assert sweep(deployment) == 0
    assert titles(deployment) == []


def test_an_uncommitted_inbox_row_delays_no_other_row(
    deployment: Deployment, shop: Engine, key: str
) -> None:
    with shop.connect() as slow:
        inbox.submit(slow, "first", api_key=key)
        with shop.begin() as quick:
            inbox.submit(quick, "second", api_key=key)
        assert sweep(deployment) == 1
        slow.commit()

    assert sweep(deployment) == 1
    assert sorted(titles(deployment)) == ["first", "second"]


def test_the_inbox_accepts_a_session_and_a_plain_connection(
    deployment: Deployment, shop: Engine, key: str
) -> None:
    with Session(shop) as session, session.begin():
        inbox.submit(session, "session", api_key=key)
    bare = psycopg2.connect(
        shop.url.set(drivername="postgresql").render_as_string(hide_password=False)
    )
    with bare, bare.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (7)")
        inbox.submit(bare, "bare ☾", api_key=key)
    bare.close()

    assert sweep(deployment) == 2
    assert titles(deployment) == ["session", "bare ☾"]


def test_the_key_comes_from_the_environment(
    deployment: Deployment, shop: Engine, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERNIGHT_API_KEY", key)
    with shop.begin() as tx:
        inbox.submit(tx, "from outside")
    monkeypatch.delenv("OVERNIGHT_API_KEY")

    with shop.begin() as tx, pytest.raises(errors.NotConfigured):
        inbox.submit(tx, "nobody's")

    assert sweep(deployment) == 1


def test_a_wrong_field_is_refused_before_anything_is_written(
    deployment: Deployment, shop: Engine, key: str
) -> None:
    with shop.begin() as tx:
        tx.execute(text("INSERT INTO orders VALUES (1)"))
        with pytest.raises(errors.InvalidRequest, match="priority"):
            inbox.submit(tx, "x", api_key=key, priority=9)

    assert deployment.rows("SELECT * FROM inbox") == []
    assert deployment.rows("SELECT * FROM orders") == [{"id": 1}]


def _revoked(deployment: Deployment, key: str) -> str:
    revoke(deployment.app, key.split("_")[2])
    return key


@pytest.mark.parametrize("spoil", [_revoked, lambda _deployment, key: key[:-10] + "x" + key[-9:]])
def test_an_invalid_key_inserts_no_inbox_row(
    deployment: Deployment, shop: Engine, key: str, spoil: Callable[[Deployment, str], str]
) -> None:
    with pytest.raises(errors.Unauthenticated, match="no valid API key"), shop.begin() as tx:
        inbox.submit(tx, "x", api_key=spoil(deployment, key))

    assert deployment.rows("SELECT * FROM inbox") == []


def test_a_read_only_key_inserts_no_inbox_row(
    deployment: Deployment, shop: Engine, user: UserId
) -> None:
    key = issue(deployment.app, user, name="reader", scopes=["tasks:read"])

    with pytest.raises(errors.Unauthenticated, match="tasks:write"), shop.begin() as tx:
        inbox.submit(tx, "x", api_key=key)


def test_neither_the_key_nor_its_stored_hash_is_sent(
    deployment: Deployment, shop: Engine, key: str
) -> None:
    stored = deployment.one("SELECT hash FROM api_keys")["hash"]
    sent: list[str] = []

    class Cursor:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing to close."""

        def execute(self, _sql: str, values: tuple[str, ...]) -> None:
            sent.extend(values)

        def fetchone(self) -> tuple[int]:
            return (1,)

    class Connection:
        def cursor(self) -> Cursor:
            return Cursor()

    assert inbox.submit(Connection(), "x", api_key=key) == 1
    assert not [word for word in sent if key.split("_")[3] in word or stored in word]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM inbox",
        "SELECT * FROM api_keys",
        "INSERT INTO inbox (user_id, key_id, task) SELECT gen_random_uuid(), 'x', '{}'",
        "SELECT * FROM tasks",
        "SELECT overnight_inbox_submit('x', 'y', '{}')",
    ],
)
def test_the_inbox_role_can_read_nothing_else(shop: Engine, key: str, statement: str) -> None:
    with pytest.raises(Exception, match=r"permission denied|no valid API key"), shop.begin() as tx:
        tx.execute(text(statement))


def _leave(shop: Engine, key: str, task: object) -> int:
    """Leave anything at all, as a program in another language might."""
    return _leave_text(shop, key, json.dumps(task))


def _leave_text(shop: Engine, key: str, task: str) -> int:
    sql = "SELECT overnight_inbox_submit(:id, :proof, CAST(:task AS jsonb))"
    key_id, proof = inbox._key_proof(key)
    with shop.begin() as tx:
        values = {"id": key_id, "proof": proof, "task": task}
        return int(tx.execute(text(sql), values).scalar_one())


@pytest.mark.parametrize("task", [[], 1, "x", {"title": "x", "payload": {"a": "b" * 1_100_000}}])
def test_an_inbox_row_must_be_a_json_object_of_bounded_size(
    deployment: Deployment, shop: Engine, key: str, task: object
) -> None:
    with pytest.raises(Exception, match="a JSON object of at most"):
        _leave(shop, key, task)


def test_an_invalid_row_keeps_its_error_and_delays_no_other_row(
    deployment: Deployment, shop: Engine, key: str
) -> None:
    bad = [
        _leave(shop, key, task)
        for task in ({}, {"title": "x", "nope": 1}, {"title": "x", "priority": 9})
    ]
    with shop.begin() as tx:
        inbox.submit(tx, "good", api_key=key)

    assert sweep(deployment) == 4

    assert titles(deployment) == ["good"]
    told = [left(deployment, row)["error"] for row in bad]
    assert "title" in told[0]
    assert "nope" in told[1]
    assert "priority" in told[2]
    assert {left(deployment, row)["outcome"] for row in bad} == {"refused"}


UNREADABLE = {
    "deep": '{"title": "a", "payload": {"a": ' + "[" * 3000 + "]" * 3000 + "}}",
    "digits": '{"title": "a", "payload": {"a": ' + "9" * 5000 + "}}",
    "huge": '{"title": "a", "payload": {"a": 1e100000}}',
    "beyond a float": '{"title": "a", "max_cost_usd": 1e400, "priority": 1e400}',
}


@pytest.mark.usefixtures("admin_cli")
@pytest.mark.parametrize("odd", UNREADABLE)
def test_an_unreadable_row_is_refused_and_delays_no_other_row(
    deployment: Deployment, shop: Engine, key: str, odd: str
) -> None:
    other = issue(deployment.app, deployment.user(), name="other")
    bad = _leave_text(shop, key, UNREADABLE[odd])
    with shop.begin() as tx:
        inbox.submit(tx, "behind", api_key=key)
        inbox.submit(tx, "another's", api_key=other)

    assert sweep(deployment) == 3

    assert sorted(titles(deployment)) == ["another's", "behind"]
    kept = deployment.one("SELECT outcome, error FROM inbox WHERE id = :id", id=bad)
    assert kept["outcome"] == "refused"
    assert kept["error"]
    assert "refused" in _cli("inbox", "list")
    [shown] = json.loads(_cli("inbox", "list", "--json"))
    assert shown["id"] == bad


def test_every_user_gets_one_batch_before_a_second(
    deployment: Deployment, shop: Engine, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_limit, "PASS_SECONDS", 0)
    other = issue(deployment.app, deployment.user(), name="other")
    for _ in range(BATCH + 1):
        _leave(shop, key, {"no": "title"})
    with shop.begin() as tx:
        inbox.submit(tx, "another's", api_key=other)

    assert sweep(deployment) == BATCH + 1
    assert titles(deployment) == ["another's"]
    assert sweep(deployment) == 1


def test_an_error_with_one_users_rows_does_not_delay_other_users(
    deployment: Deployment, shop: Engine, user: UserId, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = issue(deployment.app, deployment.user(), name="other")
    with shop.begin() as tx:
        inbox.submit(tx, "stuck", api_key=key)
        inbox.submit(tx, "another's", api_key=other)
    deployment.run(
        "CREATE FUNCTION break_one() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'broken' USING ERRCODE = 'XX000'; END $$;"
        "CREATE TRIGGER break_one BEFORE INSERT ON tasks FOR EACH ROW"
        " WHEN (NEW.title = 'stuck') EXECUTE FUNCTION break_one()"
    )
    try:
        assert sweep(deployment) == 1
    finally:
        deployment.run("DROP FUNCTION break_one CASCADE")

    assert titles(deployment) == ["another's"]
    assert f"inbox_stuck user_id={user}" in caplog.text
    assert sweep(deployment) == 1


def test_a_full_queue_keeps_rows_waiting_in_their_order(
    deployment: Deployment, shop: Engine, user: UserId, key: str
) -> None:
    deployment.run("UPDATE users SET max_pending = 2 WHERE id = :id", id=user)
    other = issue(deployment.app, deployment.user(), name="other")
    with shop.begin() as tx:
        for number in range(4):
            inbox.submit(tx, str(number), api_key=key)
        inbox.submit(tx, "another's", api_key=other)

    assert sweep(deployment) == 3
    assert sorted(titles(deployment)) == ["0", "1", "another's"]
    [first, second] = deployment.rows("SELECT * FROM inbox WHERE outcome IS NULL ORDER BY id")
    assert (first["held_by"], second["held_by"]) == ("too_many_pending", None)

    deployment.run("UPDATE users SET max_pending = 10 WHERE id = :id", id=user)
    assert sweep(deployment) == 0, "the line waits a while before it is tried again"
    deployment.move_clock(timedelta(seconds=DELAY_SECONDS))
    assert sweep(deployment) == 2
    assert [title for title in titles(deployment) if title != "another's"] == ["0", "1", "2", "3"]


def test_a_full_queue_delays_the_rows_of_all_users(
    deployment: Deployment, shop: Engine, key: str
) -> None:
    with shop.begin() as tx:
        for number in range(3):
            inbox.submit(tx, str(number), api_key=key)
    tight = load({"OVERNIGHT_QUEUE_MAX_SIZE": "1"})

    assert sweep(deployment, tight) == 1
    assert deployment.one("SELECT held_by FROM inbox WHERE held_by IS NOT NULL")["held_by"] == (
        "queue_full"
    )


def test_the_same_idempotency_key_is_one_task(
    deployment: Deployment, shop: Engine, key: str
) -> None:
    with shop.begin() as tx:
        rows = [inbox.submit(tx, "x", api_key=key, idempotency_key="order 1") for _ in range(2)]

    assert sweep(deployment) == 2
    [task] = deployment.rows("SELECT id FROM tasks")
    assert {left(deployment, row)["task_id"] for row in rows} == {task["id"]}


def test_all_rows_of_a_long_inbox_are_submitted(
    deployment: Deployment, shop: Engine, key: str
) -> None:
    with shop.begin() as tx:
        for number in range(BATCH + 5):
            inbox.submit(tx, str(number), api_key=key)

    assert sweep(deployment) == BATCH + 5
    assert titles(deployment) == [str(number) for number in range(BATCH + 5)]


def test_two_sweeps_at_once_submit_each_row_once(
    deployment: Deployment, shop: Engine, user: UserId, key: str, connect: Callable[..., Db]
) -> None:
    with shop.begin() as tx:
        for number in range(10):
            inbox.submit(tx, str(number), api_key=key)
    rivals = [Rival(connect, f"sweep-{n}", process_inbox, SETTINGS) for n in range(2)]

    with deployment.owner.engine.begin() as tx:
        tx.execute(text("SELECT 1 FROM lanes WHERE user_id = :id FOR UPDATE"), {"id": user})
        queue_up(connect, rivals)
    counts = [rival.answer() for rival in rivals]

    assert sum(counts) == 10
    assert titles(deployment) == [str(number) for number in range(10)]


def test_the_code_of_the_inbox_guide_runs(
    deployment: Deployment, shop: Engine, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERNIGHT_API_KEY", key)
    told: dict[str, Any] = {}
    for block in blocks(Path("docs/guides/inbox.md"), "python"):
        exec(block, told)

    with shop.begin() as tx:
        told["place_order"](tx, 12)

    assert sweep(deployment) == 1
    assert titles(deployment) == ["ship order 12"]


@pytest.mark.parametrize(
    ("point", "insert_graph"), [("intake.before_commit", 0), ("sweep.before_end", 3)]
)
def test_a_killed_sweep_neither_loses_nor_repeats_a_row(
    *,
    deployment: Deployment,
    shop: Engine,
    key: str,
    database_url: str,
    point: str,
    insert_graph: int,
) -> None:
    with shop.begin() as tx:
        for number in range(3):
            inbox.submit(tx, str(number), api_key=key)

    killed = _sweep_process(database_url, f"{point}=kill")

    assert killed.returncode == -signal.SIGKILL
    assert len(titles(deployment)) == insert_graph
    assert _sweep_process(database_url).returncode == 0
    assert titles(deployment) == ["0", "1", "2"]


def _sweep_process(database_url: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    program = (
        "import sys; from overnight_server.fault_points import arm;"
        "from overnight_server.maintenance.sweeps import run_sweep;"
        "from overnight_server.settings import load;"
        "from overnight_server.store.db import DISPATCHER, Db;"
        "arm(sys.argv[2] or None);"
        "run_sweep(Db.connect(sys.argv[1], role=DISPATCHER), load({}), 'inbox', force=True)"
    )
    return subprocess.run(
        [sys.executable, "-c", program, database_url, fault],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.usefixtures("admin_cli")
def test_an_operator_lists_retries_and_drops_refused_rows(
    deployment: Deployment, shop: Engine, key: str
) -> None:
    late = {"title": "late", "type": "x" * 101, "payload": {"password": "hunter2"}}
    bad = _leave(shop, key, late)
    hopeless = _leave(shop, key, {"nothing": True})
    sweep(deployment)

    shown = json.loads(_cli("inbox", "list", "--json"))
    assert [row["id"] for row in shown] == [bad, hopeless]
    assert "type" in shown[0]["error"]
    assert shown[0]["task"] == late | {"payload": {"password": "***"}}
    assert "refused" in _cli("inbox", "list")

    deployment.run('UPDATE inbox SET task = \'{"title": "late"}\' WHERE id = :id', id=bad)
    _cli("inbox", "retry", str(bad))
    _cli("inbox", "drop", str(hopeless))
    assert sweep(deployment) == 1

    assert titles(deployment) == ["late"]
    assert _cli("inbox", "list", "--json").strip() == "[]"
    every = json.loads(_cli("inbox", "list", "--all", "--json"))
    assert [row["outcome"] for row in every] == ["accepted", "dropped"]
    assert every[1]["settled_by"].startswith("user:")


@pytest.mark.usefixtures("admin_cli")
def test_an_accepted_row_can_be_neither_retried_nor_dropped(
    deployment: Deployment, shop: Engine, key: str
) -> None:
    with shop.begin() as tx:
        row = inbox.submit(tx, "x", api_key=key)
    sweep(deployment)

    for act in ("retry", "drop"):
        refused = CliRunner().invoke(app, ["inbox", act, str(row)])
        assert refused.exit_code == 1
        assert f"no row {row}" in refused.stderr


def _cli(*arguments: str) -> str:
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    return ran.stdout
