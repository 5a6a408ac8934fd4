"""Transactions whose beginning travels with their first statement."""

from collections.abc import Callable

import pytest
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, TRANSACTION_STATUS_INTRANS
from psycopg2.sql import SQL
from sqlalchemy import Connection, text
from sqlalchemy.exc import DataError

from overnight_server.store.batched_statements import (
    SessionValue,
    StatementCall,
    execute_and_commit,
    execute_batch,
)
from overnight_server.store.db import Db, Timeouts
from overnight_server.store.lazy_begin_connection import LazyBeginConnection
from tests.support.deployment import Deployment

ISOLATION = text("SHOW transaction_isolation")


@pytest.fixture
def link(database_url: str) -> LazyBeginConnection:
    """A connection as the pool would open it."""
    engine = Db.connect(database_url, role="overnight_owner", timeouts=Timeouts()).engine
    opened = engine.raw_connection().dbapi_connection
    assert isinstance(opened, LazyBeginConnection)
    opened.rollback()
    return opened


def _titles(deployment: Deployment) -> list[object]:
    return [row["title"] for row in deployment.rows("SELECT title FROM tasks ORDER BY title")]


def _status(tx: Connection) -> int:
    assert isinstance(tx.connection.dbapi_connection, LazyBeginConnection)
    return tx.connection.dbapi_connection.get_transaction_status()


@pytest.mark.parametrize("first", ["SELECT 1", b"SELECT 1", SQL("SELECT 1")], ids=repr)
def test_the_first_statement_begins_the_transaction(
    link: LazyBeginConnection, first: str | bytes | SQL
) -> None:
    with link.cursor() as cursor:
        statuses = [link.get_transaction_status()]
        cursor.execute(first)
        statuses.append(link.get_transaction_status())
        assert cursor.fetchall() == [(1,)]
    link.commit()

    assert statuses == [TRANSACTION_STATUS_IDLE, TRANSACTION_STATUS_INTRANS]
    assert link.get_transaction_status() == TRANSACTION_STATUS_IDLE


def test_executemany_is_one_transaction(link: LazyBeginConnection, deployment: Deployment) -> None:
    user = deployment.user()
    deployment.task(user, title="before")
    with link.cursor() as cursor:
        cursor.executemany("UPDATE tasks SET title = %s", [("first",), ("second",)])
        link.rollback()
    undone = _titles(deployment)
    with link.cursor() as cursor:
        cursor.executemany("UPDATE tasks SET title = %s", [("first",), ("second",)])
        link.commit()

    assert (undone, _titles(deployment)) == (["before"], ["second"])


def test_batched_and_plain_statements_share_a_transaction(deployment: Deployment) -> None:
    user = deployment.user()

    def work(tx: Connection) -> list[int]:
        statuses = [_status(tx)]
        execute_batch(
            tx,
            StatementCall("pause_lane", {"user_id": user, "paused": True}),
            StatementCall("depth"),
        )
        statuses.append(_status(tx))
        tx.execute(text("UPDATE lanes SET window_closed = true"))
        raise KeyError(*statuses)

    with pytest.raises(KeyError) as seen:
        deployment.owner.atomically(work)

    assert seen.value.args[1] == TRANSACTION_STATUS_INTRANS
    lane = deployment.lane(user)
    assert (lane["paused"], lane["window_closed"]) == (False, False)


def test_a_snapshot_applies_to_one_transaction_only(
    connect: Callable[..., Db],
) -> None:
    db = connect("one connection", pool_size=1)

    def levels() -> tuple[object, object]:
        return (
            db.atomically(lambda tx: tx.execute(ISOLATION).scalar_one(), one_instant=True),
            db.atomically(lambda tx: tx.execute(ISOLATION).scalar_one()),
        )

    assert [levels(), levels()] == [("repeatable read", "read committed")] * 2


def test_all_statements_of_a_snapshot_transaction_see_the_same_rows(
    connect: Callable[..., Db], deployment: Deployment
) -> None:
    deployment.task(deployment.user(), title="before")

    def work(tx: Connection) -> list[object]:
        read = text("SELECT title FROM tasks")
        seen = [tx.execute(read).scalar_one()]
        deployment.run("UPDATE tasks SET title = 'after'")
        return [*seen, tx.execute(read).scalar_one()]

    assert connect("reader").atomically(work, one_instant=True) == ["before", "before"]
    assert _titles(deployment) == ["after"]


def test_a_first_statement_that_fails_leaves_a_usable_connection(
    connect: Callable[..., Db],
) -> None:
    db = connect("one connection", pool_size=1)

    with pytest.raises(DataError):
        db.atomically(lambda tx: tx.execute(text("SELECT 1 / 0")))

    assert db.atomically(lambda tx: tx.execute(text("SELECT 1")).scalar_one()) == 1


def test_the_liveness_check_begins_no_transaction(database_url: str) -> None:
    db = Db.connect(database_url, role="overnight_owner", pool_size=1, timeouts=Timeouts(trust=0))
    db.atomically(_status)

    assert db.atomically(_status) == TRANSACTION_STATUS_IDLE
    db.close()


def test_a_statement_can_run_outside_a_transaction(connect: Callable[..., Db]) -> None:
    engine = connect("alone", role="overnight_owner", pool_size=1).engine

    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM pauses"))
    with engine.begin() as tx:
        tx.execute(text("SELECT 1"))
        assert _status(tx) == TRANSACTION_STATUS_INTRANS


def test_prepended_sql_runs_before_the_next_statement(link: LazyBeginConnection) -> None:
    link.prepend(b"SELECT set_config('overnight.test', '100 %', true)")
    with link.cursor() as cursor:
        cursor.execute("SELECT current_setting('overnight.test'), %s", ("x",))
        seen = cursor.fetchall()
        cursor.execute("SELECT current_setting('overnight.test')")
        seen += cursor.fetchall()
    link.rollback()

    assert seen == [("100 %", "x"), ("100 %",)]


def test_prepended_sql_is_dropped_when_the_transaction_ends(
    link: LazyBeginConnection,
) -> None:
    link.prepend(b"SELECT set_config('overnight.test', 'forgotten', true)")
    link.rollback()

    with link.cursor() as cursor:
        cursor.execute("SELECT current_setting('overnight.test', true)")
        assert cursor.fetchall() in ([(None,)], [("",)])
    link.rollback()


@pytest.mark.parametrize("trust", [0.0, 60.0], ids=["asked for life", "trusted"])
def test_a_batch_is_committed(database_url: str, deployment: Deployment, trust: float) -> None:
    user = deployment.user()
    db = Db.connect(
        database_url, role="overnight_owner", pool_size=1, timeouts=Timeouts(trust=trust)
    )
    paused = []
    for wanted in (True, False, True):
        db.run_batch(
            StatementCall("pause_lane", {"user_id": user, "paused": wanted}), StatementCall("depth")
        )
        paused.append(deployment.lane(user)["paused"])
    db.close()

    assert paused == [True, False, True]


def test_a_failed_batch_is_rolled_back_as_a_whole(deployment: Deployment) -> None:
    user = deployment.user()
    pause = StatementCall("pause_lane", {"user_id": user, "paused": True})

    with pytest.raises(DataError):
        deployment.owner.run_batch(
            pause, StatementCall("read_lane", {"user_id": "nobody", "with_depth": False})
        )

    assert not deployment.lane(user)["paused"]


def test_last_statements_end_their_transaction(deployment: Deployment) -> None:
    user = deployment.user()

    def work(tx: Connection) -> int:
        tx.execute(text("UPDATE lanes SET window_closed = true"))
        execute_and_commit(tx, StatementCall("pause_lane", {"user_id": user, "paused": True}))
        return _status(tx)

    assert deployment.owner.atomically(work) == TRANSACTION_STATUS_IDLE
    lane = deployment.lane(user)
    assert (lane["paused"], lane["window_closed"]) == (True, True)


def test_last_statements_that_fail_roll_back_the_transaction(deployment: Deployment) -> None:
    user = deployment.user()

    def work(tx: Connection) -> None:
        tx.execute(text("UPDATE lanes SET window_closed = true"))
        execute_and_commit(
            tx, StatementCall("read_lane", {"user_id": "nobody", "with_depth": False})
        )

    with pytest.raises(DataError):
        deployment.owner.atomically(work)

    assert not deployment.lane(user)["window_closed"]


def test_a_statement_can_read_a_session_value_of_the_one_before_it(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.run("UPDATE users SET max_pending = 7 WHERE id = :id", id=user)
    noting = {"user_id": user, "actor": "", "key_id": "", "traceparent": ""}

    reading = StatementCall(
        "read_lane", {"user_id": SessionValue("user_id", "uuid"), "with_depth": False}
    )
    [row] = deployment.owner.run_batch(StatementCall("set_acting_user", noting), reading)

    assert row.max_pending == 7
