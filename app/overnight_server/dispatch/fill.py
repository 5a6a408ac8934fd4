"""One pass of the dispatcher: claim for every free slot, commit, then publish.

Where slots stay free for want of work, one of them is invited to listen for it.
"""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from overnight_server.dispatch.publish import Publisher
from overnight_server.fault_points import fault
from overnight_server.gate.claim import CLAIMS_PER_PASS, Terms, claim
from overnight_server.outcome.settle import release
from overnight_server.settings import Settings
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import Event, emit

LOOK_AT_POOLS_SECONDS = 1.0


@dataclass(frozen=True)
class Pass:
    """What one pass did, and whether another might find more."""

    sent: int
    more: bool


class OpenPools:
    """The pools to fill, looked up every second at most: a new one may have to wait that long."""

    def __init__(self, db: Db) -> None:
        self._db = db
        self._names: list[str] = []
        self._seen = -math.inf

    def __iter__(self) -> Iterator[str]:
        now = time.monotonic()
        if now - self._seen > LOOK_AT_POOLS_SECONDS or not self._names:
            rows = self._db.atomically(
                lambda tx: tx.execute(statement("open_pools")).scalars().all()
            )
            self._names, self._seen = list(rows), now
        return iter(self._names)


def fill(
    db: Db,
    publisher: Publisher,
    settings: Settings,
    *,
    holder: str,
    pools: Iterable[str] | None = None,
    broker_answers: bool = False,
) -> Pass:
    """Fill the free slots of every pool once; raises BrokerUnreachable before claiming anything.

    Who has just heard from Redis need not ask whether it answers.
    """
    if not broker_answers:
        publisher.check()
    passes = [
        fill_pool(db, publisher, settings, pool, holder=holder) for pool in pools or OpenPools(db)
    ]
    return Pass(sum(one.sent for one in passes), any(one.more for one in passes))


def fill_pool(db: Db, publisher: Publisher, settings: Settings, pool: str, *, holder: str) -> Pass:
    """Claim for one pool's free slots and send the claims; what cannot be sent is given back."""
    taken = claim(db, pool, holder=holder, terms=Terms.of(settings), limit=CLAIMS_PER_PASS)
    if taken.claims:
        fault("claim.after_commit")
        emit(Event.CLAIMS_MADE, pool=pool, count=len(taken.claims))
    unsent = publisher.send(pool, taken.claims)
    if taken.claims:
        fault("publish.after")
    if unsent:
        release(db, unsent, reason="broker")
    elif taken.idle and not taken.claims and _may_linger(settings):
        publisher.invite(pool)
    return Pass(len(taken.claims) - len(unsent), taken.more and not unsent)


def _may_linger(settings: Settings) -> bool:
    """Whether slots go on by themselves, and an invitation does not use up a whole process."""
    return settings.refill_seconds > 0 and settings.max_tasks_per_child > 1
