"""Database calls of an asyncio process: in threads, so that no call stops its event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from overnight_server.store.db import DATABASE_ERRORS, Db, is_transient
from overnight_server.telemetry import LogEvent, Outage

# More threads would only compete with the event loop for the interpreter.
THREADS = 4
RETRY_SECONDS = 1.0
P = ParamSpec("P")
T = TypeVar("T")


class DbThreads:
    """Calls functions that use the database; an outage is logged once."""

    def __init__(self, db: Db) -> None:
        self.db = db
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="database")
        self._outage = Outage(LogEvent.DATABASE_UNREACHABLE, LogEvent.DATABASE_BACK)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns; repeat it while the database does not answer.

        Every such function is conditional on a claim, so that a repetition does no harm.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                result = await loop.run_in_executor(
                    self._threads, partial(function, *args, **kwargs)
                )
            except DATABASE_ERRORS as error:
                if not is_transient(error):
                    raise
                self._outage.begin(error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._outage.end()
            return result

    def close(self) -> None:
        """End the threads; calls that have begun are awaited."""
        self._threads.shutdown()
