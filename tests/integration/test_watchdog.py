"""A Postgres that stops answering raises an error and does not block the process."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from sqlalchemy import Connection, text

from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.connection_watchdog import WATCHDOG, Watchdog
from overnight_server.store.db import LAST_USED, DatabaseUnreachable, Db, Timeouts
from overnight_server.store.lazy_begin_connection import LazyBeginConnection
from tests.support.servers import Superuser, postgres_server


@contextmanager
def hung(server: EmbeddedPostgres) -> Iterator[None]:
    main = psutil.Process(server.pid)
    family = [main, *main.children(recursive=True)]
    for process in family:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in family:
            os.kill(process.pid, signal.SIGCONT)


def select_one(tx: Connection) -> int:
    return int(tx.execute(text("SELECT 1")).scalar_one())


def test_a_hung_postgres_raises_and_is_used_again_afterwards() -> None:
    with postgres_server() as server:
        # Every connection is checked before use, as after a long idle time.
        db = Db.connect(server.url(), role=None, timeouts=Timeouts(trust=0))
        assert db.atomically(select_one) == 1

        with hung(server), pytest.raises(DatabaseUnreachable):
            db.atomically(select_one)

        assert db.atomically(select_one) == 1
        db.close()


def test_a_transaction_without_an_answer_ends(postgres: EmbeddedPostgres) -> None:
    timeouts = Timeouts(statement=60, silence=0.5)
    db = Db.connect(postgres.url(), role=None, timeouts=timeouts)

    with pytest.raises(DatabaseUnreachable):
        db.atomically(lambda tx: tx.execute(text("SELECT pg_sleep(30)")))

    assert db.atomically(select_one) == 1
    db.close()


def test_a_pool_without_a_free_connection_counts_as_unreachable(
    postgres: EmbeddedPostgres,
) -> None:
    db = Db.connect(postgres.url(), role=None, pool_size=1)

    with db.engine.connect(), db.engine.connect(), pytest.raises(DatabaseUnreachable):
        db.atomically(select_one)

    db.close()


def test_a_child_forked_while_the_watchdog_is_locked_can_use_it() -> None:
    watchdog = Watchdog()
    locked, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with watchdog._changed:
            locked.set()
            forked.wait(5)

    holder = threading.Thread(target=hold)
    holder.start()
    locked.wait(5)
    child = os.fork()
    if child == 0:
        # The thread that holds the lock does not exist in the child.
        signal.alarm(3)
        watchdog.watch(0, 60)
        os._exit(0)
    forked.set()
    holder.join()
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0


def test_releasing_a_watch_keeps_a_later_watch_of_the_same_descriptor() -> None:
    watchdog = Watchdog()
    broken = watchdog.watch(7, 60)
    later = watchdog.watch(7, 60)

    watchdog.release(broken)
    still_watched = set(watchdog._entries)
    watchdog.release(later)

    assert (still_watched, set(watchdog._entries)) == ({7}, set())


def test_a_broken_connection_is_no_longer_watched(
    database_url: str, as_superuser: Superuser
) -> None:
    db = Db.connect(database_url, role="overnight_owner")
    descriptors = []

    def break_off(tx: Connection) -> None:
        link = tx.connection.dbapi_connection
        assert link is not None
        descriptors.append(link.fileno())
        as_superuser.run(f"SELECT pg_terminate_backend({link.get_backend_pid()})")
        tx.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnreachable):
        db.atomically(break_off)

    assert descriptors
    assert not WATCHDOG._entries.keys() & set(descriptors)
    assert db.atomically(select_one) == 1
    db.close()


def test_a_closed_connection_is_replaced_before_it_is_used(
    database_url: str, as_superuser: Superuser
) -> None:
    trusted = Timeouts(trust=60)
    db = Db.connect(database_url, role="overnight_owner", pool_size=1, timeouts=trusted)
    pid = db.atomically(lambda tx: tx.execute(text("SELECT pg_backend_pid()")).scalar_one())

    as_superuser.run(f"SELECT pg_terminate_backend({pid}, 5000)")

    assert db.atomically(select_one) == 1
    db.close()


def test_a_reserved_connection_that_was_not_used_counts_as_idle(database_url: str) -> None:
    db = Db.connect(database_url, role="overnight_owner", pool_size=1)

    def last_used() -> float:
        with db.reserve_connection() as reserved:
            return float(reserved.connection.info[LAST_USED])

    db.atomically(select_one)
    instants = [last_used(), last_used()]
    with db.reserve_connection() as reserved:
        reserved.send(reserved.pack(StatementCall("open_pools")))
    instants.append(last_used())
    db.close()

    assert instants[0] == instants[1] < instants[2]


def test_a_connection_lost_right_after_its_check_is_an_unreachable_database(
    database_url: str, as_superuser: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    untrusting = Timeouts(trust=0)
    db = Db.connect(database_url, role="overnight_owner", pool_size=1, timeouts=untrusting)
    db.atomically(select_one)
    ping = LazyBeginConnection.ping

    def ping_and_disconnect(link: LazyBeginConnection) -> float:
        database_time = ping(link)
        as_superuser.run(f"SELECT pg_terminate_backend({link.get_backend_pid()})")
        return database_time

    monkeypatch.setattr(LazyBeginConnection, "ping", ping_and_disconnect)
    with pytest.raises(DatabaseUnreachable):
        db.atomically(select_one, one_instant=True)
    monkeypatch.undo()

    assert db.atomically(select_one) == 1
    db.close()
