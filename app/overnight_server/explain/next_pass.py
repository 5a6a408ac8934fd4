"""What the next pass of a pool would make of one task, looked at without taking anything."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row

from overnight_server.domain.ids import TaskId, UserId
from overnight_server.gate.claim import (
    CLAIMS_PER_PASS,
    LOOKS_PER_PASS,
    WIDER,
    Capacity,
    Terms,
    Want,
    offered,
    question,
    wanted,
)
from overnight_server.store.statements import statement

# Of the user's own tasks that go first, how many are named.
NAMED = 10
NOBODY = "nobody"


class Stage(IntEnum):
    """How far a task comes in a pass; a later one is nearer to its start."""

    LANE = 0  # other users are looked at first
    ROOM = 1  # the user's own tasks ahead fill the user's room
    LOCK = 2  # one of those takes a lock that it needs too
    HOURS = 3  # those use up what is left of the month
    MONEY = 4  # those use up what is left of a budget
    SLOTS = 5  # the free slots go to others
    TAKEN = 6


@dataclass(frozen=True)
class Outcome:
    """How far a task comes in the next pass of a pool, and what goes before it.

    `room` is how many of the user's the pass would take, `place` the task's in the order of all
    users' tasks; both are None if it does not come so far.
    """

    pool: str
    stage: Stage
    free: int
    before: Sequence[UUID] = ()
    room: int | None = None
    place: int | None = None


@dataclass(frozen=True)
class Offer:
    """A pool's slots as a pass counts them: all, busy, and free within the cap on all pools.

    An agent outside may serve one user alone.
    """

    pool: str
    slots: int
    busy: int
    in_all_pools: int
    capabilities: Sequence[Sequence[str]]
    types: Sequence[Sequence[str]]
    capacity: Capacity
    serves: UUID | None = None


def offer_of(
    tx: Connection,
    pool: str,
    terms: Terms,
    *,
    is_outside: bool = False,
    types: Sequence[str] | None = None,
    serves: UUID | None = None,
) -> Offer:
    """Count a pool's slots as a pass would, but hold nothing meanwhile.

    An agent outside takes the types it says, or all, and may serve one user alone.
    """
    asked = {"pool": pool, "liveness": terms.liveness.total_seconds()}
    row = tx.execute(statement("pool_capacity"), asked).one()
    return Offer(
        pool=pool,
        slots=row.slots,
        busy=row.singles + row.bundles,
        in_all_pools=row.in_all_pools,
        capabilities=row.capabilities or (),
        types=row.types or (),
        capacity=offered(row, terms)
        if not is_outside
        else replace(offered(row, terms), types=types, elsewhere=()),
        serves=serves,
    )


def look_ahead(
    tx: Connection,
    offer: Offer,
    user_id: UserId,
    task_id: TaskId,
    terms: Terms,
    *,
    limit: int = CLAIMS_PER_PASS,
) -> Outcome:
    """Return what a pass over this pool would make of a ready task if it began now.

    It looks into the same lanes in the same order and chooses with the words of the claim itself.
    Only what somebody else holds at this instant is not seen: a pass would skip a locked lane.
    """
    pool, capacity = offer.pool, offer.capacity
    want = wanted(capacity, terms, limit=limit, holder=NOBODY)
    passed_over: list[UUID] = []
    for _ in range(LOOKS_PER_PASS):
        served = [] if offer.serves is None else [offer.serves]
        lanes = served or _lanes(tx, pool, want, passed_over)
        if not lanes:
            break
        asked = question(lanes, capacity, terms, want) | {
            "task_id": task_id,
            "user_id": user_id,
            "max_position": NAMED,
        }
        row = tx.execute(statement("next_pass"), asked).one()
        if row.chosen or user_id in lanes:
            return Outcome(
                pool=pool,
                stage=_stage(row) if user_id in lanes else Stage.LANE,
                free=capacity.free,
                before=row.before,
                room=row.room,
                place=row.place,
            )
        # All in vain: those lanes step aside, and the same pass looks further.
        passed_over += lanes
        want = replace(want, spare=want.spare * WIDER)
    return Outcome(pool, Stage.LANE, capacity.free)


def _lanes(tx: Connection, pool: str, want: Want, passed_over: Sequence[UUID]) -> list[UUID]:
    asked = {
        "pool": pool,
        "few": want.singles + want.spare,
        "limit": want.limit,
        "passed_over": list(passed_over),
    }
    return list(tx.execute(statement("lanes_to_serve"), asked).scalars())


def _stage(row: Row[Any]) -> Stage:
    if row.is_chosen:
        return Stage.TAKEN
    if row.place is not None:
        return Stage.SLOTS
    if row.has_locks:
        return Stage.MONEY if row.has_hours else Stage.HOURS
    return Stage.LOCK if row.is_candidate else Stage.ROOM
