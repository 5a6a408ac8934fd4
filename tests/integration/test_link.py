"""Transactions whose beginning travels with their first statement."""

from collections.abc import Callable

import pytest
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, TRANSACTION_STATUS_INTRANS
from psycopg2.sql import SQL
from sqlalchemy import Connection, text
from sqlalchemy.exc import DataError

from app.store.db import Db, Timeouts
from app.store.hot import Call, ask
from app.store.link import Link
from tests.support.house import House

ISOLATION = text("SHOW transaction_isolation")


@pytest.fixture
def link(database_url: str) -> Link:
    """A connection as the pool would open it."""
    engine = Db.connect(database_url, role="overnight_owner", timeouts=Timeouts()).engine
    opened = engine.raw_connection().dbapi_connection
    assert isinstance(opened, Link)
    opened.rollback()
    return opened


def _titles(house: House) -> list[object]:
    return [row["title"] for row in house.rows("SELECT title FROM tasks ORDER BY title")]


def _status(tx: Connection) -> int:
    assert isinstance(tx.connection.dbapi_connection, Link)
    return tx.connection.dbapi_connection.get_transaction_status()


@pytest.mark.parametrize("first", ["SELECT 1", b"SELECT 1", SQL("SELECT 1")], ids=repr)
def test_whatever_comes_first_begins(link: Link, first: str | bytes | SQL) -> None:
    with link.cursor() as cursor:
        seen = [link.get_transaction_status()]
        cursor.execute(first)
        seen.append(link.get_transaction_status())
        assert cursor.fetchall() == [(1,)]
    link.commit()

    assert seen == [TRANSACTION_STATUS_IDLE, TRANSACTION_STATUS_INTRANS]
    assert link.get_transaction_status() == TRANSACTION_STATUS_IDLE


def test_many_values_are_one_transaction(link: Link, house: House) -> None:
    user = house.user()
    house.task(user, title="before")
    with link.cursor() as cursor:
        cursor.executemany("UPDATE tasks SET title = %s", [("first",), ("second",)])
        link.rollback()
    undone = _titles(house)
    with link.cursor() as cursor:
        cursor.executemany("UPDATE tasks SET title = %s", [("first",), ("second",)])
        link.commit()

    assert (undone, _titles(house)) == (["before"], ["second"])


def test_the_hot_path_and_others_share_a_transaction(house: House) -> None:
    user = house.user()

    def work(tx: Connection) -> list[int]:
        seen = [_status(tx)]
        ask(tx, Call("pause_lane", {"user_id": user, "paused": True}), Call("depth"))
        seen.append(_status(tx))
        tx.execute(text("UPDATE lanes SET window_closed = true"))
        raise KeyError(*seen)

    with pytest.raises(KeyError) as seen:
        house.owner.atomically(work)

    assert seen.value.args[1] == TRANSACTION_STATUS_INTRANS
    lane = house.lane(user)
    assert (lane["paused"], lane["window_closed"]) == (False, False)


def test_one_instant_is_shielded_and_the_next_transaction_is_not(
    connect: Callable[..., Db],
) -> None:
    db = connect("one connection", pool_size=1)

    def levels() -> tuple[object, object]:
        return (
            db.atomically(lambda tx: tx.execute(ISOLATION).scalar_one(), one_instant=True),
            db.atomically(lambda tx: tx.execute(ISOLATION).scalar_one()),
        )

    assert [levels(), levels()] == [("repeatable read", "read committed")] * 2


def test_an_instant_stands_still(connect: Callable[..., Db], house: House) -> None:
    house.task(house.user(), title="before")

    def work(tx: Connection) -> list[object]:
        read = text("SELECT title FROM tasks")
        seen = [tx.execute(read).scalar_one()]
        house.run("UPDATE tasks SET title = 'after'")
        return [*seen, tx.execute(read).scalar_one()]

    assert connect("reader").atomically(work, one_instant=True) == ["before", "before"]
    assert _titles(house) == ["after"]


def test_a_first_statement_that_fails_leaves_a_usable_connection(
    connect: Callable[..., Db],
) -> None:
    db = connect("one connection", pool_size=1)

    with pytest.raises(DataError):
        db.atomically(lambda tx: tx.execute(text("SELECT 1 / 0")))

    assert db.atomically(lambda tx: tx.execute(text("SELECT 1")).scalar_one()) == 1


def test_the_question_for_life_begins_the_transaction(database_url: str) -> None:
    db = Db.connect(database_url, role="overnight_owner", pool_size=1, timeouts=Timeouts(trust=0))
    db.atomically(_status)

    assert db.atomically(_status) == TRANSACTION_STATUS_INTRANS
    db.close()


def test_what_must_stand_alone_can(connect: Callable[..., Db]) -> None:
    engine = connect("alone", role="overnight_owner", pool_size=1).engine

    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM pauses"))
    with engine.begin() as tx:
        tx.execute(text("SELECT 1"))
        assert _status(tx) == TRANSACTION_STATUS_INTRANS
