"""The gate: who may run now. One transaction, the pool and the lanes locked, then one choice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil

from sqlalchemy import Connection, RowMapping

from app.domain.claims import Claim, Claimed
from app.domain.ids import TaskId, UserId
from app.domain.lifecycle import Event, sources, target
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
class Capacity:
    """Slots a pool could fill now, and what all of its workers can do."""

    free: int
    capabilities: Sequence[str]

    def at_most(self, limit: int) -> "Capacity":
        """Return the same capacity with no more than `limit` slots."""
        return replace(self, free=min(self.free, limit))


NOTHING = Taken((), more=False)


def claim(
    db: Db,
    pool: str,
    *,
    holder: str,
    claim_ttl: timedelta,
    liveness: timedelta,
    slots_max: int | None = None,
    limit: int = 100,
) -> Taken:
    """Claim tasks for every free slot of a pool, at most `limit`, and commit."""

    def work(tx: Connection) -> Taken:
        # The pool's lock before any lane's, like everyone, so that nobody waits in a ring.
        capacity = _capacity(tx, pool, liveness, slots_max).at_most(limit)
        if capacity.free <= 0:
            return NOTHING
        lanes.roll_due(tx, CYCLES_PER_PASS)
        return Taken(
            _choose(tx, pool, capacity, holder=holder, claim_ttl=claim_ttl),
            more=bool(tx.execute(statement("more_to_serve"), {"pool": pool}).scalar_one()),
        )

    return db.atomically(work)


def _capacity(tx: Connection, pool: str, liveness: timedelta, slots_max: int | None) -> Capacity:
    if tx.execute(statement("lock_pool"), {"pool": pool}).one_or_none() is None:
        return Capacity(0, ())
    agents = tx.execute(
        statement("live_agents"), {"pool": pool, "liveness": liveness.total_seconds()}
    ).all()
    if not agents:
        return Capacity(0, ())
    active = tx.execute(statement("count_active"), {"pool": pool}).one()
    free = sum(agent.slots for agent in agents) - active.in_pool
    if slots_max is not None:
        free = min(free, slots_max - active.in_house)
    # Any worker of the pool may get the message, so only what all can do may be promised.
    shared = set.intersection(*(set(agent.capabilities) for agent in agents))
    return Capacity(free, sorted(shared))


def _choose(
    tx: Connection, pool: str, capacity: Capacity, *, holder: str, claim_ttl: timedelta
) -> list[Claimed]:
    locked = (
        tx.execute(
            statement("lock_lanes_to_serve"), {"pool": pool, "lanes": capacity.free + SPARE_LANES}
        )
        .scalars()
        .all()
    )
    if not locked:
        return []
    # A second statement, so that it judges rows as they are now that the lanes are held.
    rows = tx.execute(
        statement("claim"),
        {
            "users": locked,
            "pool": pool,
            "slots": capacity.free,
            # Enough for everyone's share and a little more; the next pass takes the rest.
            "per_lane": 1 + ceil(capacity.free / len(locked)),
            "capabilities": list(capacity.capabilities),
            "holder": holder,
            "claim_ttl": claim_ttl.total_seconds(),
            "sources": sources(Event.CLAIM),
            "target": target(Event.CLAIM),
        },
    ).mappings()
    return [_claimed(row) for row in rows]


def _claimed(row: RowMapping) -> Claimed:
    return Claimed(
        claim=Claim(TaskId(row["id"]), row["epoch"], row["token"]),
        user_id=UserId(row["user_id"]),
        type=row["type"],
        attempt=row["attempts"] + 1,
        max_attempts=row["max_attempts"],
    )
