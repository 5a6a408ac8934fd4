"""One pass of the dispatcher: claim tasks for free slots, commit, then publish the claims.

If slots stay free because no task is ready, one of them is requested to become an idle listener.
"""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from overnight_server.dispatch.publish import Publisher
from overnight_server.fault_points import fault
from overnight_server.gate.claim import CLAIMS_PER_PASS, ClaimSettings, claim
from overnight_server.outcome.settle import release
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, emit

POOLS_REFRESH_SECONDS = 1.0


@dataclass(frozen=True)
class FillResult:
    """How many claims one pass sent, and whether another pass might send more."""

    sent: int
    more: bool


class OpenPools:
    """The names of the pools to fill, read from Postgres at most once per second."""

    def __init__(self, db: Db) -> None:
        self._db = db
        self._names: list[str] = []
        self._read_at = -math.inf

    def __iter__(self) -> Iterator[str]:
        now = time.monotonic()
        if now - self._read_at > POOLS_REFRESH_SECONDS or not self._names:
            rows = self._db.atomically(
                lambda tx: tx.execute(statement("open_pools")).scalars().all()
            )
            self._names, self._read_at = list(rows), now
        return iter(self._names)


def fill(
    db: Db,
    publisher: Publisher,
    settings: Settings,
    *,
    holder: str,
    pools: Iterable[str] | None = None,
    broker_answers: bool = False,
) -> FillResult:
    """Fill the free slots of every pool once; raise BrokerUnreachable before claiming anything.

    `broker_answers` skips the check of Redis, for a caller that has just received a wake-up.
    """
    if not broker_answers:
        publisher.check()
    results = [
        fill_pool(db, publisher, settings, pool, holder=holder) for pool in pools or OpenPools(db)
    ]
    return FillResult(
        sum(result.sent for result in results), any(result.more for result in results)
    )


def fill_pool(
    db: Db, publisher: Publisher, settings: Settings, pool: str, *, holder: str
) -> FillResult:
    """Claim for one pool's free slots and publish the claims; unpublished claims are released."""
    taken = claim(
        db,
        pool,
        holder=holder,
        claim_settings=ClaimSettings.from_settings(settings),
        limit=CLAIMS_PER_PASS,
    )
    if taken.claims:
        fault("claim.after_commit")
        emit(LogEvent.CLAIMS_MADE, pool=pool, count=len(taken.claims))
    unsent = publisher.send(pool, taken.claims)
    if taken.claims:
        fault("publish.after")
    if unsent:
        release(db, unsent, reason="broker")
    elif taken.idle and not taken.claims and _allows_idle_listeners(settings):
        publisher.request_idle_listener(pool)
    return FillResult(len(taken.claims) - len(unsent), taken.more and not unsent)


def _allows_idle_listeners(settings: Settings) -> bool:
    """Whether slots claim by themselves, and one message does not use up a whole process."""
    return settings.refill_seconds > 0 and settings.max_tasks_per_child > 1
