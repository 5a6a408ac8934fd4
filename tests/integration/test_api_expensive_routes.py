"""Forecasts and plans: few at once, with threads and connections of their own."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from sqlalchemy import text

from overnight.errors import Overloaded, TooManyRequests
from overnight_server.api.http.expensive_calls import (
    MAX_CALLS,
    MAX_CALLS_PER_CALLER,
    MAX_RUNNING,
    ExpensiveCalls,
)
from overnight_server.store.db import Db
from tests.support.api_user import TASKS
from tests.support.deployment import Deployment
from tests.support.live_api import LiveApi, serve
from tests.support.rivals import Connect
from tests.support.wait import wait_until

# More users than there are connections to Postgres for all other routes.
USERS = 12
WAITING = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name = 'overnight-api' AND wait_event_type = 'Lock'"
)


@pytest.fixture
def api(deployment: Deployment, database_url: str) -> Iterator[LiveApi]:
    with serve(deployment, database_url) as api:
        yield api


def test_other_routes_respond_while_all_forecasts_wait(
    api: LiveApi, deployment: Deployment, owner_db: Db, connect: Connect
) -> None:
    watcher = connect("watcher", role=None)
    keys = [api.another_key(deployment.user()) for _ in range(USERS)]

    def get(path: str, key: str) -> int:
        headers = {"X-API-Key": key}
        return httpx2.get(f"{api.url}{path}", headers=headers, timeout=60).status_code

    with ThreadPoolExecutor(USERS) as callers:
        # Only forecasts read this table.
        with owner_db.engine.begin() as tx:
            tx.execute(text("LOCK TABLE type_durations IN ACCESS EXCLUSIVE MODE"))
            forecasts = [callers.submit(get, f"{TASKS}/forecast", key) for key in keys]
            wait_until(lambda: _count_waiting(watcher) >= MAX_RUNNING, what="forecasts to wait")

            assert [get(TASKS, key) for key in keys] == [200] * USERS

        assert {forecast.result() for forecast in forecasts} <= {200, 503}


def _count_waiting(watcher: Db) -> int:
    """Return how many transactions of the API wait for a lock."""
    with watcher.engine.begin() as tx:
        return int(tx.execute(WAITING).scalar_one())


def test_waiting_calls_are_limited_for_each_caller_and_in_all(db: Db) -> None:
    asyncio.run(_fill(ExpensiveCalls(db)))


async def _fill(expensive: ExpensiveCalls) -> None:
    may_end = threading.Event()
    calls = [
        asyncio.ensure_future(_call(expensive, f"user {number % 10}", may_end))
        for number in range(MAX_CALLS)
    ]
    await asyncio.sleep(0)

    assert MAX_CALLS == 10 * MAX_CALLS_PER_CALLER
    with pytest.raises(TooManyRequests):
        await _call(expensive, "user 1", may_end)
    with pytest.raises(Overloaded):
        await _call(expensive, "another user", may_end)
    may_end.set()
    assert await asyncio.gather(*calls) == [True] * MAX_CALLS
    assert await _call(expensive, "user 1", may_end)


async def _call(expensive: ExpensiveCalls, caller: str, may_end: threading.Event) -> bool:
    with expensive.place(caller):
        return await expensive.call(may_end.wait)
