"""Predict what the next pass of a pool would do with one task, without claiming anything."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row

from overnight_server.domain.ids import TaskId, UserId
from overnight_server.gate.claim import (
    CLAIMS_PER_PASS,
    MAX_LANE_BATCHES_PER_PASS,
    SPARE_GROWTH,
    Capacity,
    ClaimRequest,
    ClaimSettings,
    choice_params,
    pool_capacity,
    pool_params,
    request_for_pool,
)
from overnight_server.store.batched_statements import StatementCall, execute_batch
from overnight_server.store.statements import statement

# How many of the user's own tasks that go first are listed by id.
MAX_LISTED = 10
NOBODY = "nobody"


class Stage(IntEnum):
    """How far a task comes in a pass; a higher stage is nearer to the start of the task."""

    LANE = 0  # the pass reads the lanes of other users first
    ROOM = 1  # tasks of the same user fill the number that the user may run at once
    LOCK = 2  # a task of the same user takes a lock that this task needs too
    HOURS = 3  # tasks of the same user use up the hours that are left this month
    MONEY = 4  # tasks of the same user use up what is left of a budget
    SLOTS = 5  # the free slots go to other tasks
    TAKEN = 6


@dataclass(frozen=True)
class PassOutcome:
    """How far a task comes in the next pass of a pool, and which own tasks go first.

    `room` is how many tasks of the user the pass would take, `place` the position of the task
    among all users' tasks; each is None if the task does not come that far.
    """

    pool: str
    stage: Stage
    free: int
    before: Sequence[UUID] = ()
    room: int | None = None
    place: int | None = None


@dataclass(frozen=True)
class PoolSlots:
    """A pool's slots as a pass counts them: all, busy, and free within the cap on all pools.

    `serves` is the only user that a pull agent serves; None means all users.
    """

    pool: str
    slots: int
    busy: int
    in_all_pools: int
    capabilities: Sequence[Sequence[str]]
    types: Sequence[Sequence[str] | None]
    capacity: Capacity
    serves: UUID | None = None


def count_slots(
    tx: Connection,
    pool: str,
    claim_settings: ClaimSettings,
    *,
    is_outside: bool = False,
    types: Sequence[str] | None = None,
    serves: UUID | None = None,
) -> PoolSlots:
    """Count a pool's slots as a pass of the gate would, but without taking its locks.

    `is_outside` marks the pool of a pull agent; `types` are the only types that it accepts.
    """
    [row] = execute_batch(tx, StatementCall("pool_capacity", pool_params(pool, claim_settings)))
    return PoolSlots(
        pool=pool,
        slots=row.slots,
        busy=row.singles + row.bundles,
        in_all_pools=row.in_all_pools,
        capabilities=row.capabilities or (),
        types=row.types or (),
        capacity=pool_capacity(row, claim_settings)
        if not is_outside
        else replace(pool_capacity(row, claim_settings), types=types),
        serves=serves,
    )


def predict_pass(
    tx: Connection,
    slots: PoolSlots,
    user_id: UserId,
    task_id: TaskId,
    claim_settings: ClaimSettings,
    *,
    limit: int = CLAIMS_PER_PASS,
) -> PassOutcome:
    """Return how far a ready task would come if a pass over this pool began now.

    The lanes are read in the same order and the tasks chosen with the same SQL as in a claim.
    One difference remains: a claim skips lanes that another transaction has locked.
    """
    pool, capacity = slots.pool, slots.capacity
    request = request_for_pool(capacity, claim_settings, limit=limit, holder=NOBODY)
    passed_over: list[UUID] = []
    for _ in range(MAX_LANE_BATCHES_PER_PASS):
        served = [] if slots.serves is None else [slots.serves]
        lanes = served or _lanes(tx, pool, request, passed_over)
        if not lanes:
            break
        params = choice_params(lanes, capacity, claim_settings, request) | {
            "task_id": task_id,
            "user_id": user_id,
            "max_position": MAX_LISTED,
        }
        row = tx.execute(statement("next_pass"), params).one()
        if row.chosen or user_id in lanes:
            return PassOutcome(
                pool=pool,
                stage=_stage(row) if user_id in lanes else Stage.LANE,
                free=capacity.free,
                before=row.before,
                room=row.room,
                place=row.place,
            )
        # Nothing can start in these lanes, so the same pass reads further ones.
        passed_over += lanes
        request = replace(request, spare=request.spare * SPARE_GROWTH)
    return PassOutcome(pool, Stage.LANE, capacity.free)


def _lanes(
    tx: Connection, pool: str, request: ClaimRequest, passed_over: Sequence[UUID]
) -> list[UUID]:
    params = {
        "pool": pool,
        "min_lanes": len(request.message_ids) + request.spare,
        "limit": request.limit,
        "passed_over": list(passed_over),
    }
    return list(tx.execute(statement("lanes_in_fair_order"), params).scalars())


def _stage(row: Row[Any]) -> Stage:
    if row.is_chosen:
        return Stage.TAKEN
    if row.place is not None:
        return Stage.SLOTS
    if row.has_locks:
        return Stage.MONEY if row.has_hours else Stage.HOURS
    return Stage.LOCK if row.is_candidate else Stage.ROOM
