"""The gate: decides which ready tasks may run now, and claims them.

A claim is one transaction: lock the pool, count its free slots, lock lanes in fair order, and then
choose tasks with a statement that starts after the locks were granted, so that it sees what the
previous holders of these locks committed. The conditions themselves (hours, budgets, locks,
capabilities) are in the function claim_candidates (schema/14_gate.sql) and in claim.sql.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from math import ceil
from typing import Self
from uuid import UUID, uuid4

from sqlalchemy import Connection

from overnight_server.domain.claims import Claim, Claimed, Run
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.lifecycle import LifecycleEvent, sources, target
from overnight_server.fault_points import fault
from overnight_server.gate.dispatch_log import log_dispatch, log_taken
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.batched_statements import (
    NOW,
    PackedBatch,
    ResultRow,
    SessionValue,
    StatementCall,
    execute_batch,
)
from overnight_server.store.db import Db, ReservedConnection
from overnight_server.store.run_rows import run_of
from overnight_server.store.statements import statement
from overnight_server.store.uuids import as_array

# Claims in one transaction; a larger batch would hold the lanes longer without being faster.
CLAIMS_PER_PASS = 200
LANES_PER_REFRESH = 100
# Lanes without a suitable task are skipped by the pool. A pass searches at most this many batches
# of lanes, each larger than the last, so that thousands of such lanes do not leave slots idle.
MAX_LANE_BATCHES_PER_PASS = 5
SPARE_GROWTH = 6
# The pool name on claims of callers that run the task themselves; no worker listens to it.
DIRECT = "direct"
# Parameters of the claim that `prepare_idle_claim` stores in the session for it.
IDLE_CLAIM_PARAMS = {
    "users": SessionValue("users", "uuid[]"),
    "capabilities": SessionValue("capabilities", "text[]"),
    "types": SessionValue("types", "text[]"),
    "usd_left": SessionValue("usd_left", "numeric"),
}


@dataclass(frozen=True)
class ClaimPass:
    """The claims of one pass.

    `idle` counts the slots that are still free. `more` says whether another pass may find tasks for
    them, for instance because another transaction held a lane's lock during this pass.
    """

    claims: Sequence[Claimed] = ()
    more: bool = False
    idle: int = 0


@dataclass(frozen=True)
class StartedRuns:
    """Runs that a slot has claimed and started itself; `idle` counts the other free slots."""

    runs: Sequence[Run] = ()
    idle: int = 0


@dataclass(frozen=True)
class BundleLimits:
    """How many short tasks one message may carry: seconds of expected work, and tasks."""

    seconds: float = 0.25
    tasks: int = 100


NO_BUNDLES = BundleLimits(tasks=1)


@dataclass(frozen=True)
class ClaimSettings:
    """The settings that a claim depends on.

    `claim_ttl` is how long a claim may wait for its start, `liveness` how long a worker counts as
    alive after a heartbeat, `slots_max` the cap on slots of all pools (None: no cap).
    """

    claim_ttl: timedelta
    liveness: timedelta
    slots_max: int | None = None
    bundle_limits: BundleLimits = NO_BUNDLES

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Select the settings that a claim depends on."""
        return cls(
            claim_ttl=timedelta(seconds=settings.claim_ttl),
            liveness=timedelta(seconds=settings.worker_liveness),
            slots_max=settings.slots_max,
            bundle_limits=BundleLimits(settings.bundle_seconds, settings.bundle_max),
        )


@dataclass(frozen=True)
class Capacity:
    """The free slots of a pool, the workers that offer them, and what every one of them can do.

    `types` are the only task types that it accepts; None accepts all.
    """

    free: int = 0
    agents: Sequence[str] = ()
    capabilities: Sequence[str] = ()
    lanes_due: bool = False
    usd_left: Decimal | None = None
    types: Sequence[str] | None = None


@dataclass(frozen=True)
class ClaimRequest:
    """How many tasks one pass may claim, for whom, and from which lanes.

    A message carries one task, or a bundle of short tasks that is stored under the message's id of
    `message_ids`. `limit` counts the tasks of all messages. With `user_id` only that user's
    lane is considered, which the caller has locked; with `only` just that task. With `lease` the
    holder runs the tasks itself, and the claim also starts them.
    """

    message_ids: Sequence[UUID]
    limit: int
    holder: str
    user_id: UserId | None = None
    only: TaskId | None = None
    lease: timedelta | None = None
    # The name under which lanes without a suitable task are skipped; None: the pool's name.
    skip_as: str | None = None
    # Whether the pool skips lanes without a candidate from now on. An idle slot considers only its
    # own worker's capabilities: a lane without a task for that worker may have one for another.
    skips_lanes: bool = True
    # How many more lanes than slots are locked, so that empty lanes do not leave a slot idle.
    spare: int = 10


@dataclass(frozen=True)
class LockedLanes:
    """The lanes that a pass holds, and how many of their tasks may start."""

    users: Sequence[UUID]
    room: int


def claim(
    db: Db, pool: str, *, holder: str, claim_settings: ClaimSettings, limit: int = 100
) -> ClaimPass:
    """Claim tasks for every free slot of a pool, at most `limit`, and commit."""

    def work(tx: Connection) -> ClaimPass:
        # A transaction that holds a pool's lock never waits for a lane: it skips lanes that are
        # locked ("Lock order" in docs/architecture.md).
        capacity = _locked_capacity(tx, pool, claim_settings)
        if capacity.free <= 0:
            return ClaimPass()
        request = request_for_pool(capacity, claim_settings, limit=limit, holder=holder)
        lanes_due = capacity.lanes_due
        for _ in range(MAX_LANE_BATCHES_PER_PASS):
            lanes_due = lanes_due and _refresh_lanes(tx)
            rows = _claim_tasks(tx, pool, capacity, claim_settings, request)
            claims = [_claimed(row) for row in rows]
            idle = capacity.free - len(
                {claimed.bundle or claimed.claim.token for claimed in claims}
            )
            # A lane that is still due may have tasks that only become visible when it is refreshed.
            more = idle > 0 and (lanes_due or _has_more_lanes(tx, pool))
            if claims or not more:
                break
            # None of those lanes had a suitable task; they are skipped now. Look at more lanes.
            request = replace(request, spare=request.spare * SPARE_GROWTH)
        return ClaimPass(claims, more, idle)

    return db.atomically(work)


def claim_next_for_slot(
    tx: Connection,
    pool: str,
    *,
    agent: str,
    bundle: UUID,
    claim_settings: ClaimSettings,
    lease: timedelta,
) -> StartedRuns:
    """Claim and start the next work of a worker's slot in the transaction that settles its tasks.

    That is one task, or several short ones. Nobody else can see the slot free in between, so the
    pool needs no exclusive lock.
    """
    tasks = claim_settings.bundle_limits.tasks
    request = ClaimRequest([bundle], tasks, holder=agent, lease=lease, spare=0)
    params = {**pool_params(pool, claim_settings), **_lane_params(pool, request)}
    [row] = execute_batch(
        tx,
        StatementCall("lock_pool_shared", {"pool": pool}),
        *_slot_cap_lock(claim_settings),
        StatementCall("read_pool_and_lock_lanes", params),
    )
    capacity = _open_capacity(row, claim_settings)
    if capacity.free <= 0 or agent not in capacity.agents:
        return StartedRuns()
    locked = LockedLanes(row.users, row.room)
    if capacity.lanes_due:
        _refresh_lanes(tx)
        locked = _lock_lanes(tx, pool, request)
    rows = _claim_tasks(tx, pool, capacity, claim_settings, request, locked=locked)
    return StartedRuns([run_of(_claim_of(row), row) for row in rows], capacity.free - bool(rows))


def prepare_idle_claim(
    reserved: ReservedConnection,
    pool: str,
    *,
    agent: str,
    token: UUID,
    claim_settings: ClaimSettings,
    lease: timedelta,
) -> PackedBatch:
    """Build the batch that claims and starts one task for an idle slot of a worker.

    If the answer is lost, the caller can look for a claim with this token. Lanes that are due are
    left to the dispatcher.
    """
    request = ClaimRequest([token], 1, holder=agent, lease=lease, spare=0, skips_lanes=False)
    slot_params = {
        **pool_params(pool, claim_settings),
        **_lane_params(pool, request),
        "agent": agent,
        "slots_max": claim_settings.slots_max,
    }
    choice = choice_params((), Capacity(), claim_settings, request)
    claim_params = _claim_params(pool, choice, claim_settings, request, [token])
    return reserved.pack(
        StatementCall("lock_pool", {"pool": pool}),
        *_slot_cap_lock(claim_settings),
        StatementCall("prepare_idle_claim", slot_params),
        StatementCall("claim_single", claim_params | IDLE_CLAIM_PARAMS),
    )


def claim_for_idle_slot(reserved: ReservedConnection, batch: PackedBatch) -> Run | None:
    """Send the prepared batch, which commits; return the started run, or None without a task."""
    return next((run_of(_claim_of(row), row) for row in reserved.send(batch)), None)


def claim_for_agent(
    db: Db,
    pool: str,
    *,
    agent: str,
    claim_settings: ClaimSettings,
    serves: UserId | None,
    types: Sequence[str],
    logged_as: str | None = None,
) -> Claimed | None:
    """Claim one task for a free slot of a pull agent and commit; None if no task may run.

    The agent has a pool of its own. With `serves` it gets only that user's tasks; with `types` only
    tasks of these types. The log names the agent by `logged_as`, or else by its id.
    """

    def work(tx: Connection) -> Claimed | None:
        if serves is not None:
            # Before the pool: nobody who holds a pool waits for a lane. Reading refreshes the lane.
            lanes.read(tx, serves, hold=True)
        capacity = _locked_capacity(tx, pool, claim_settings)
        if capacity.free <= 0 or agent not in capacity.agents:
            return None
        # A pull agent declares the types it accepts; handlers of other workers are not considered.
        capacity = replace(capacity, types=types or None)
        if serves is None and capacity.lanes_due:
            _refresh_lanes(tx)
        request = ClaimRequest([uuid4()], 1, holder=agent, user_id=serves)
        return _claim_first(tx, pool, capacity, claim_settings, request)

    claimed = db.atomically(work)
    if claimed is not None:
        log_dispatch([claimed.claim.task_id], logged_as or agent)
    return claimed


def claim_one(
    db: Db,
    *,
    holder: str,
    claim_settings: ClaimSettings,
    user_id: UserId | None = None,
    task_id: TaskId | None = None,
    capabilities: Sequence[str] = (),
) -> Claimed | None:
    """Claim one task for a caller that runs it itself, and commit; None if no task may run.

    No slot of a pool is used; every other rule applies as for a pool. The caller may name the user,
    and one task of that user.
    """

    def work(tx: Connection) -> Claimed | None:
        if user_id is not None:
            # Before the other locks, as in `claim_for_agent`.
            lanes.read(tx, user_id, hold=True)
        counts = _read_pool(tx, DIRECT, claim_settings, StatementCall("lock_all_pools_shared"))
        if counts.paused:
            return None
        if claim_settings.slots_max is not None and counts.in_all_pools >= claim_settings.slots_max:
            return None
        if user_id is None and counts.lanes_due:
            _refresh_lanes(tx)
        capacity = Capacity(1, (), tuple(capabilities))
        # Callers differ in what they can do: a lane is skipped only for equal capabilities.
        skip_as = f"{DIRECT}:{','.join(sorted(capabilities))}"
        request = ClaimRequest([uuid4()], 1, holder, user_id, task_id, skip_as=skip_as)
        return _claim_first(tx, DIRECT, capacity, claim_settings, request)

    claimed = db.atomically(work)
    if claimed is not None:
        log_taken([claimed.claim.task_id], holder)
    return claimed


def _claim_first(
    tx: Connection,
    pool: str,
    capacity: Capacity,
    claim_settings: ClaimSettings,
    request: ClaimRequest,
) -> Claimed | None:
    """Claim one task, looking at more lanes as long as none of those looked at has one."""
    for _ in range(MAX_LANE_BATCHES_PER_PASS):
        rows = _claim_tasks(tx, pool, capacity, claim_settings, request)
        if rows or request.user_id is not None or not _has_more_lanes(tx, request.skip_as or pool):
            break
        request = replace(request, spare=request.spare * SPARE_GROWTH)
    return _claimed(rows[0]) if rows else None


def request_for_pool(
    capacity: Capacity, claim_settings: ClaimSettings, *, limit: int, holder: str
) -> ClaimRequest:
    """Return the request that fills all free slots of a pool."""
    messages = min(capacity.free, limit)
    return ClaimRequest(
        message_ids=[uuid4() for _ in range(messages)],
        limit=min(limit, messages * claim_settings.bundle_limits.tasks),
        holder=holder,
    )


def _refresh_lanes(tx: Connection) -> bool:
    """Bring due lanes up to date; return whether more lanes may be due."""
    return lanes.refresh_due_lanes(tx, LANES_PER_REFRESH).due == LANES_PER_REFRESH


def _has_more_lanes(tx: Connection, skip_as: str) -> bool:
    return bool(tx.execute(statement("has_more_lanes"), {"skip_as": skip_as}).scalar_one())


def _locked_capacity(tx: Connection, pool: str, claim_settings: ClaimSettings) -> Capacity:
    row = _read_pool(tx, pool, claim_settings, StatementCall("lock_pool", {"pool": pool}))
    return _open_capacity(row, claim_settings)


def _open_capacity(row: ResultRow, claim_settings: ClaimSettings) -> Capacity:
    """Return what a pool can run; nothing if the pool, or everything, is paused."""
    return pool_capacity(row, claim_settings) if row.is_open and not row.paused else Capacity()


def pool_capacity(row: ResultRow, claim_settings: ClaimSettings) -> Capacity:
    """Return what a pool could run if it is not paused, from a row of `pool_capacity`."""
    free = row.slots - row.singles - row.bundles
    if claim_settings.slots_max is not None:
        free = min(free, claim_settings.slots_max - row.in_all_pools)
    # Any worker of the pool may get the message, so only what all of them can do counts. For the
    # same reason the statement returns the smallest remaining budget of them.
    shared = set.intersection(*map(set, row.capabilities)) if row.capabilities else set()
    return Capacity(
        free,
        row.agents,
        sorted(shared),
        row.lanes_due,
        row.usd_left,
        accepted_types(row.types),
    )


def accepted_types(declared: Sequence[Sequence[str] | None] | None) -> list[str] | None:
    """Return the task types that a pool accepts, from those of each of its workers; None is all.

    Any worker of the pool may get the message, so every worker must have the handler. A worker that
    declares no types (None) accepts what the others accept. A task of another type waits.

    >>> accepted_types([["echo"], ["echo", "sleep"], None]), accepted_types([[]])
    (['echo'], [])
    >>> accepted_types([None]) is None
    True
    """
    lists = [set(types) for types in declared or () if types is not None]
    return sorted(set.intersection(*lists)) if lists else None


def _read_pool(
    tx: Connection, pool: str, claim_settings: ClaimSettings, *locks: StatementCall
) -> ResultRow:
    """Count the slots of a pool and of all pools; with a slot cap under an exclusive lock."""
    [row] = execute_batch(
        tx,
        *locks,
        *_slot_cap_lock(claim_settings),
        StatementCall("pool_capacity", pool_params(pool, claim_settings)),
    )
    return row


def _slot_cap_lock(claim_settings: ClaimSettings) -> Sequence[StatementCall]:
    """Return the call that keeps other pools from counting the same free slots under a cap."""
    return () if claim_settings.slots_max is None else (StatementCall("lock_slot_cap"),)


def _claim_tasks(
    tx: Connection,
    pool: str,
    capacity: Capacity,
    claim_settings: ClaimSettings,
    request: ClaimRequest,
    *,
    locked: LockedLanes | None = None,
) -> Sequence[ResultRow]:
    locked = _lock_lanes(tx, pool, request) if locked is None else locked
    if not locked.users:
        return []
    limit = min(request.limit, locked.room)
    # uuid4() is faster than gen_random_uuid(), which opens the system's random source each time.
    tokens = [uuid4() for _ in range(limit)]
    choice = choice_params(locked.users, capacity, claim_settings, request) | {"limit": limit}
    params = _claim_params(pool, choice, claim_settings, request, tokens)
    # A second statement, so that its snapshot is taken after the lanes were locked.
    rows = execute_batch(tx, StatementCall("claim" if limit > 1 else "claim_single", params))
    fault("claim.before_commit")
    return rows


def _claim_params(
    pool: str,
    choice: dict[str, object],
    claim_settings: ClaimSettings,
    request: ClaimRequest,
    tokens: Sequence[UUID],
) -> dict[str, object]:
    """Return the parameters of the claim: those of the choice, and what is written to the tasks."""
    event = LifecycleEvent.TAKE if request.lease else LifecycleEvent.CLAIM
    return {
        **choice,
        "pool": pool,
        "skip_as": request.skip_as or pool,
        "skips_lanes": request.skips_lanes,
        "bundles": as_array(request.message_ids),
        "tokens": as_array(tokens),
        "now": NOW,
        "holder": request.holder,
        "starts": request.lease is not None,
        "ttl": (request.lease or claim_settings.claim_ttl).total_seconds(),
        "sources": sources(event),
        "target": target(event),
    }


def choice_params(
    users: Sequence[UUID],
    capacity: Capacity,
    claim_settings: ClaimSettings,
    request: ClaimRequest,
) -> dict[str, object]:
    """Return the parameters that decide which tasks of these users are chosen."""
    return {
        "users": as_array(users),
        "only": request.only,
        "messages": len(request.message_ids),
        "bundle_seconds": claim_settings.bundle_limits.seconds,
        "bundle_max": claim_settings.bundle_limits.tasks,
        "limit": request.limit,
        # An equal share for each user. What some leave unused, the next pass gives to the others.
        "per_lane": ceil(request.limit / max(len(users), 1)),
        "capabilities": list(capacity.capabilities),
        "types": None if capacity.types is None else list(capacity.types),
        "usd_left": capacity.usd_left,
    }


def _lock_lanes(tx: Connection, pool: str, request: ClaimRequest) -> LockedLanes:
    if request.user_id is not None:
        return LockedLanes([request.user_id], request.limit)
    rows = execute_batch(tx, StatementCall("lock_lanes_in_fair_order", _lane_params(pool, request)))
    return LockedLanes([row.user_id for row in rows], sum(row.room for row in rows))


def pool_params(pool: str, claim_settings: ClaimSettings) -> dict[str, object]:
    """Return the parameters of the statement `pool_capacity`."""
    return {"pool": pool, "liveness": claim_settings.liveness.total_seconds()}


def _lane_params(pool: str, request: ClaimRequest) -> dict[str, object]:
    min_lanes = len(request.message_ids) + request.spare
    return {
        "skip_as": request.skip_as or pool,
        "min_lanes": min_lanes,
        "limit": request.limit,
    }


def _claimed(row: ResultRow) -> Claimed:
    return Claimed(
        claim=_claim_of(row),
        user_id=UserId(row.user_id),
        type=row.type,
        attempt=row.attempts + 1,
        max_attempts=row.max_attempts,
        bundle=row.bundle,
    )


def _claim_of(row: ResultRow) -> Claim:
    return Claim(TaskId(row.id), row.epoch, row.token)
