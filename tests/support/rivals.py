"""Rivals: threads that need the same row at the same time; a lock makes them meet, not chance."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import text

from overnight_server.store.db import Db, Timeouts
from overnight_server.store.statements import sources
from tests.support.wait import wait_until

TIMEOUT_SECONDS = 60.0
Connect = Callable[..., Db]


class Rival(threading.Thread):
    """One call of `work(db, …)` in its own thread; its connections have the rival's name."""

    def __init__(
        self, connect: Connect, name: str, work: Callable[..., Any], *args: Any, **options: Any
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._connect = connect
        self._call = (work, args, options)
        self._answer: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        work, args, options = self._call
        try:
            self._answer = work(self._connect(self.name), *args, **options)
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is read
            self._error = error

    def answer(self) -> Any:
        """Wait for the call to end; return what it returned, or raise what it raised."""
        self.join(TIMEOUT_SECONDS)
        assert not self.is_alive(), f"{self.name} has not ended after {TIMEOUT_SECONDS} s"
        if self._error is not None:
            raise self._error
        return self._answer


def wait_until_blocked(watcher: Db, application_name: str) -> None:
    """Wait until a connection with this application name waits for a lock.

    `watcher` must be connected without a role: only then does Postgres show it what the
    sessions of its own login wait for.
    """
    count_blocked = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = :name"
        " AND wait_event_type = 'Lock'"
    )

    def blocked() -> bool:
        with watcher.engine.begin() as tx:
            return bool(tx.execute(count_blocked, {"name": application_name}).scalar_one())

    wait_until(
        blocked,
        timeout=TIMEOUT_SECONDS,
        pause=0.01,
        what=f"{application_name} to wait for a lock",
    )


def queue_up(connect: Connect, rivals: Sequence[Rival]) -> None:
    """Start rivals one by one, so that they wait in this order for a lock that the caller holds."""
    with ExitStack() as stack:
        watcher = connect("watcher", role=None, pool_size=1)
        stack.callback(watcher.close)
        for rival in rivals:
            rival.start()
            wait_until_blocked(watcher, rival.name)


def meet_at_lane(connect: Connect, user_id: UUID, *rivals: Rival) -> list[Any]:
    """Let rivals wait in order for the user's lane; release it and return their answers."""
    with held_lane(connect, user_id):
        queue_up(connect, rivals)
    return [rival.answer() for rival in rivals]


def meet_at_task(connect: Connect, task_id: UUID, *rivals: Rival) -> list[Any]:
    """Let rivals wait in order for one task's row; release it and return their answers."""
    with held_task(connect, task_id):
        queue_up(connect, rivals)
    return [rival.answer() for rival in rivals]


@contextmanager
def held_lane(connect: Connect, user_id: UUID) -> Iterator[None]:
    """Lock a user's lane, as every transaction does that moves tasks of the user."""
    with _locked(connect, "SELECT FROM lanes WHERE user_id = :key FOR NO KEY UPDATE", user_id):
        yield


@contextmanager
def lane_held_for_long(url: str, user_id: UUID) -> Iterator[None]:
    """Lock a user's lane for longer than the idle timeout of the deployment's connections."""
    with _long_lived(url) as connect, held_lane(connect, user_id):
        yield


@contextmanager
def task_held_for_long(url: str, task_id: UUID) -> Iterator[None]:
    """Lock a task's row for longer than the idle timeout of the deployment's connections."""
    with _long_lived(url) as connect, held_task(connect, task_id):
        yield


@contextmanager
def _long_lived(url: str) -> Iterator[Connect]:
    db = Db.connect(url, role=None, timeouts=Timeouts(idle=60))
    try:
        yield lambda *_, **__: db
    finally:
        db.close()


@contextmanager
def held_task(connect: Connect, task_id: UUID) -> Iterator[None]:
    """Lock only a task's row; its user's lane stays free."""
    with _locked(connect, "SELECT FROM tasks WHERE id = :key FOR NO KEY UPDATE", task_id):
        yield


@contextmanager
def held_pool(connect: Connect, pool: str) -> Iterator[None]:
    """Lock a pool, as a dispatcher does while it counts free slots."""
    with _locked(connect, sources()["lock_pool"].replace(":pool", ":key"), pool):
        yield


@contextmanager
def _locked(connect: Connect, sql: str, key: object) -> Iterator[None]:
    with connect("holder", pool_size=1).engine.begin() as tx:
        assert len(tx.execute(text(sql), {"key": key}).all()) == 1
        yield
