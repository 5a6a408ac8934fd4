"""The database's clock as this process sees it, without a question to the database.

New ids contain the time and are sorted by it, and the clock of this host may be wrong. Each ping of
a connection also reads the database's clock; between two pings the time comes from the monotonic
clock, which nobody can set.
"""

import time
from typing import Final

from overnight_server.domain.ids import use_clock


class DatabaseClock:
    """Tells the time of the database last connected to; that of this host before."""

    def __init__(self) -> None:
        self._difference = time.time() - time.monotonic()

    def now(self) -> float:
        """Return the seconds since 1970 by an estimate of the database's clock.

        Before the first connection it is the clock of this host.
        """
        return time.monotonic() + self._difference

    def observe(self, database_time: float, sent_at: float, received_at: float) -> None:
        """Correct the clock by a time of the database, read between two monotonic times.

        A difference that agrees with it stays, so that a slow response does not shift the clock.
        """
        if not database_time - received_at <= self._difference <= database_time - sent_at:
            self._difference = database_time - (sent_at + received_at) / 2


#: One for the process: all its connections are to one deployment.
DATABASE_CLOCK: Final = DatabaseClock()
use_clock(DATABASE_CLOCK.now)
