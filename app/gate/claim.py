"""The gate: who may run now. One transaction, the pool and the lanes locked, then one choice."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from uuid import uuid4

from sqlalchemy import Connection, RowMapping

from app.domain.claims import Claim, Claimed
from app.domain.ids import TaskId, UserId
from app.domain.lifecycle import Event, sources, target
from app.faults import fault
from app.store import lanes
from app.store.db import Db
from app.store.statements import statement

# More lanes than slots, so that lanes found empty do not leave a slot idle.
SPARE_LANES = 10
CYCLES_PER_PASS = 100


@dataclass(frozen=True)
class Taken:
    """What one pass of the gate took, and whether another pass might take more."""

    claims: Sequence[Claimed]
    more: bool


@dataclass(frozen=True)
class Bundling:
    """How much quick work may travel in one message: so many seconds of it, so many tasks."""

    seconds: float = 0.25
    tasks: int = 50


ONE_BY_ONE = Bundling(tasks=1)


@dataclass(frozen=True)
class Capacity:
    """Slots a pool could fill now, and what all of its workers can do.

    `ahead` more messages of quick tasks may wait behind the quick ones that run, so that no
    slot idles while the next are being claimed. Behind a long run they would wait too long.
    """

    free: int
    ahead: int
    capabilities: Sequence[str]

    @property
    def messages(self) -> int:
        """How many messages may be sent in all."""
        return max(0, self.free + self.ahead)


NOTHING = Taken((), more=False)


def claim(
    db: Db,
    pool: str,
    *,
    holder: str,
    claim_ttl: timedelta,
    liveness: timedelta,
    slots_max: int | None = None,
    bundling: Bundling = ONE_BY_ONE,
    limit: int = 100,
) -> Taken:
    """Claim tasks for every free slot of a pool, at most `limit`, and commit."""

    def work(tx: Connection) -> Taken:
        # The pool's lock before any lane's, like everyone, so that nobody waits in a ring.
        capacity = _capacity(tx, pool, liveness, slots_max)
        if capacity.messages <= 0:
            return NOTHING
        lanes.roll_due(tx, CYCLES_PER_PASS)
        want = Want(min(limit, capacity.messages * bundling.tasks), bundling, holder, claim_ttl)
        claims = _choose(tx, pool, capacity, want)
        # With no slot free, what is left must wait for one: looking again would find the same.
        hopeful = bool(claims) or capacity.free > 0
        return Taken(claims, more=hopeful and _more(tx, pool))

    return db.atomically(work)


def _more(tx: Connection, pool: str) -> bool:
    return bool(tx.execute(statement("more_to_serve"), {"pool": pool}).scalar_one())


def _capacity(tx: Connection, pool: str, liveness: timedelta, slots_max: int | None) -> Capacity:
    if tx.execute(statement("lock_pool"), {"pool": pool}).one_or_none() is None:
        return Capacity(0, 0, ())
    agents = tx.execute(
        statement("live_agents"), {"pool": pool, "liveness": liveness.total_seconds()}
    ).all()
    if not agents:
        return Capacity(0, 0, ())
    active = tx.execute(statement("count_active"), {"pool": pool}).one()
    slots = sum(agent.slots for agent in agents)
    free = slots - active.singles - active.bundles
    ahead = min(active.bundles, slots)
    if slots_max is not None:
        free = min(free, slots_max - active.in_house)
        ahead = max(0, min(ahead, slots_max - active.in_house - free))
    # Any worker of the pool may get the message, so only what all can do may be promised.
    shared = set.intersection(*(set(agent.capabilities) for agent in agents))
    return Capacity(free, ahead, sorted(shared))


@dataclass(frozen=True)
class Want:
    """What one pass asks of the lanes."""

    limit: int
    bundling: Bundling
    holder: str
    claim_ttl: timedelta


def _choose(tx: Connection, pool: str, capacity: Capacity, want: Want) -> list[Claimed]:
    locked = (
        tx.execute(
            statement("lock_lanes_to_serve"), {"pool": pool, "lanes": want.limit + SPARE_LANES}
        )
        .scalars()
        .all()
    )
    if not locked:
        return []
    messages = min(capacity.messages, want.limit)
    # A second statement, so that it judges rows as they are now that the lanes are held.
    rows = tx.execute(
        statement("claim"),
        {
            "users": locked,
            "pool": pool,
            "free": capacity.free,
            "messages": messages,
            "bundles": [uuid4() for _ in range(messages)],
            # Postgres would open its source of randomness anew for each.
            "tokens": [uuid4() for _ in range(want.limit)],
            "bundle_seconds": want.bundling.seconds,
            "bundle_max": want.bundling.tasks,
            "limit": want.limit,
            # Everyone's share; if some have less, the next pass gives the rest to the others.
            "per_lane": ceil(want.limit / len(locked)),
            "capabilities": list(capacity.capabilities),
            "holder": want.holder,
            "claim_ttl": want.claim_ttl.total_seconds(),
            "sources": sources(Event.CLAIM),
            "target": target(Event.CLAIM),
        },
    ).mappings()
    fault("claim.before_commit")
    return [_claimed(row) for row in rows]


def _claimed(row: RowMapping) -> Claimed:
    return Claimed(
        claim=Claim(TaskId(row["id"]), row["epoch"], row["token"]),
        user_id=UserId(row["user_id"]),
        type=row["type"],
        attempt=row["attempts"] + 1,
        max_attempts=row["max_attempts"],
        bundle=row["bundle"],
    )
