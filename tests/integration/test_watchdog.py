"""A server that stops answering ends the wait, not the process."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from sqlalchemy import Connection, text

from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.store.batched_statements import Call
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


def one(tx: Connection) -> int:
    return int(tx.execute(text("SELECT 1")).scalar_one())


def test_a_hung_postgres_is_given_up_on_and_found_again() -> None:
    with postgres_server() as server:
        # As for connections that were idle for longer than they are trusted.
        db = Db.connect(server.url(), role=None, timeouts=Timeouts(trust=0))
        assert db.atomically(one) == 1

        with hung(server):
            began = time.monotonic()
            with pytest.raises(DatabaseUnreachable):
                db.atomically(one)
            waited = time.monotonic() - began

        assert waited < 6
        assert db.atomically(one) == 1
        db.close()


def test_a_transaction_that_hears_nothing_ends(postgres: EmbeddedPostgres) -> None:
    patience = Timeouts(statement=60, silence=0.5)
    db = Db.connect(postgres.url(), role=None, timeouts=patience)

    with pytest.raises(DatabaseUnreachable):
        db.atomically(lambda tx: tx.execute(text("SELECT pg_sleep(30)")))

    assert db.atomically(one) == 1
    db.close()


def test_a_pool_without_a_free_connection_counts_as_unreachable(
    postgres: EmbeddedPostgres,
) -> None:
    db = Db.connect(postgres.url(), role=None, pool_size=1)

    with db.engine.connect(), db.engine.connect(), pytest.raises(DatabaseUnreachable):
        db.atomically(one)

    db.close()


def test_a_child_forked_while_the_watchdog_was_at_work_can_still_be_watched() -> None:
    watchdog = Watchdog()
    holding, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with watchdog._changed:
            holding.set()
            forked.wait(5)

    holder = threading.Thread(target=hold)
    holder.start()
    holding.wait(5)
    child = os.fork()
    if child == 0:
        # The holder of the lock does not exist here, and would never let go.
        signal.alarm(3)
        watchdog.watch(0, 60)
        os._exit(0)
    forked.set()
    holder.join()
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0


def test_whoever_ends_a_watch_ends_nobody_elses() -> None:
    watchdog = Watchdog()
    broken = watchdog.watch(7, 60)
    next_to_have_the_number = watchdog.watch(7, 60)

    watchdog.release(broken)
    still_watched = set(watchdog._entries)
    watchdog.release(next_to_have_the_number)

    assert (still_watched, set(watchdog._entries)) == ({7}, set())


def test_a_connection_that_broke_is_watched_no_longer(
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
    assert db.atomically(one) == 1
    db.close()


def test_a_connection_that_was_just_cut_is_replaced_before_it_is_used(
    database_url: str, as_superuser: Superuser
) -> None:
    trusted = Timeouts(trust=60)
    db = Db.connect(database_url, role="overnight_owner", pool_size=1, timeouts=trusted)
    pid = db.atomically(lambda tx: tx.execute(text("SELECT pg_backend_pid()")).scalar_one())

    as_superuser.run(f"SELECT pg_terminate_backend({pid}, 5000)")

    assert db.atomically(one) == 1
    db.close()


def test_a_connection_that_stood_by_in_silence_is_no_more_to_be_trusted(database_url: str) -> None:
    db = Db.connect(database_url, role="overnight_owner", pool_size=1)

    def last_used() -> float:
        with db.reserve_connection() as reserved:
            return float(reserved.connection.info[LAST_USED])

    db.atomically(one)
    seen = [last_used(), last_used()]
    with db.reserve_connection() as reserved:
        reserved.send(reserved.pack(Call("open_pools")))
    seen.append(last_used())
    db.close()

    assert seen[0] == seen[1] < seen[2]


def test_a_line_lost_before_an_instant_is_an_unreachable_database(
    database_url: str, as_superuser: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubting = Timeouts(trust=0)
    db = Db.connect(database_url, role="overnight_owner", pool_size=1, timeouts=doubting)
    db.atomically(one)
    ping = LazyBeginConnection.ping

    def live_and_die(link: LazyBeginConnection) -> None:
        ping(link)
        as_superuser.run(f"SELECT pg_terminate_backend({link.get_backend_pid()})")

    monkeypatch.setattr(LazyBeginConnection, "ping", live_and_die)
    with pytest.raises(DatabaseUnreachable):
        db.atomically(one, one_instant=True)
    monkeypatch.undo()

    assert db.atomically(one) == 1
    db.close()
