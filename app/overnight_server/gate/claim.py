"""The gate: who may run now. One transaction, the pool and the lanes locked, then one choice."""

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
from overnight_server.domain.lifecycle import Event, sources, target
from overnight_server.fault_points import fault
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.batched_statements import NOW, Answer, Call, Noted, Trip, ask
from overnight_server.store.db import Db, Standby
from overnight_server.store.run_rows import run_of
from overnight_server.store.statements import statement
from overnight_server.store.uuids import as_array

# Claims in one transaction; more would hold the lanes longer without going faster.
CLAIMS_PER_PASS = 200
CYCLES_PER_PASS = 100
# Lanes that have nothing for a pool step aside; thousands of them may do so in one pass.
LOOKS_PER_PASS = 5
WIDER = 6
# The pool on claims of callers that run the task themselves; no worker listens to it.
DIRECT = "direct"
# What `look_for_one` notes for the claim that travels with it.
AS_LOOKED_FOR = {
    "users": Noted("users", "uuid[]"),
    "capabilities": Noted("capabilities", "text[]"),
    "types": Noted("types", "text[]"),
    "usd_left": Noted("usd_left", "numeric"),
}


@dataclass(frozen=True)
class Taken:
    """What one pass of the gate took.

    `more` says that another pass might find something for the slots that are still free, which
    `idle` counts: a lane may only have been locked.
    """

    claims: Sequence[Claimed] = ()
    more: bool = False
    idle: int = 0


@dataclass(frozen=True)
class Begun:
    """What a slot took for itself: runs that have begun, and how many other slots are idle."""

    runs: Sequence[Run] = ()
    idle: int = 0


@dataclass(frozen=True)
class Bundling:
    """How much quick work may travel in one message: so many seconds of it, so many tasks."""

    seconds: float = 0.25
    tasks: int = 100


ONE_BY_ONE = Bundling(tasks=1)


@dataclass(frozen=True)
class Terms:
    """On what terms slots are filled: how long a claim and a worker last, how many, how packed."""

    claim_ttl: timedelta
    liveness: timedelta
    slots_max: int | None = None
    bundling: Bundling = ONE_BY_ONE

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Take the terms from the settings."""
        return cls(
            claim_ttl=timedelta(seconds=settings.claim_ttl),
            liveness=timedelta(seconds=settings.worker_liveness),
            slots_max=settings.slots_max,
            bundling=Bundling(settings.bundle_seconds, settings.bundle_max),
        )


@dataclass(frozen=True)
class Capacity:
    """The free slots of a pool, who offers them, and what all of those can do.

    `elsewhere` are the types that not all of them know, but some worker of the deployment does.
    """

    free: int = 0
    agents: Sequence[str] = ()
    capabilities: Sequence[str] = ()
    lanes_due: bool = False
    usd_left: Decimal | None = None
    elsewhere: Sequence[str] = ()
    # The only types it takes; None for whatever its capabilities cover.
    types: Sequence[str] | None = None


@dataclass(frozen=True)
class Want:
    """What one pass asks of the lanes: tasks that need a slot each, and bundles of quick ones.

    It may ask one user alone, whose lane is held already, and for one task and no other. A holder
    that carries them out itself begins at once, under its lease.
    """

    singles: int
    bundles: Sequence[UUID]
    limit: int
    holder: str
    user_id: UserId | None = None
    only: TaskId | None = None
    lease: timedelta | None = None
    # For whom lanes step aside that have nothing; the pool, unless its callers differ.
    aside: str | None = None
    # Whether they do: not for one slot's own look, which judges less than its pool could do.
    parks: bool = True
    # More lanes than slots, so that lanes found empty do not leave a slot idle.
    spare: int = 10


@dataclass(frozen=True)
class Held:
    """The lanes a pass holds, and for how many of their tasks there is room."""

    users: Sequence[UUID]
    room: int


def claim(db: Db, pool: str, *, holder: str, terms: Terms, limit: int = 100) -> Taken:
    """Claim tasks for every free slot of a pool, at most `limit`, and commit."""

    def work(tx: Connection) -> Taken:
        # The pool's lock before any lane's, like everyone, so that nobody waits in a ring.
        capacity = _capacity(tx, pool, terms, Call("lock_pool", {"pool": pool}))
        if capacity.free <= 0:
            return Taken()
        want = wanted(capacity, terms, limit=limit, holder=holder)
        behind = capacity.lanes_due
        for _ in range(LOOKS_PER_PASS):
            behind = behind and _catch_up(tx)
            claims = [_claimed(row) for row in _choose(tx, pool, capacity, terms, want)]
            idle = capacity.free - len({one.bundle or one.claim.token for one in claims})
            # Lanes that are still due may hold work that nobody sees before their turn.
            more = idle > 0 and (behind or _more(tx, pool))
            if claims or not more:
                break
            # All of those lanes were in vain and have stepped aside: look further.
            want = replace(want, spare=want.spare * WIDER)
        return Taken(claims, more, idle)

    return db.atomically(work)


def take_next(
    tx: Connection, pool: str, *, agent: str, bundle: UUID, terms: Terms, lease: timedelta
) -> Begun:
    """Claim and begin quick work for an agent's slot, in the transaction that settles its last.

    So nobody else can have seen the slot free, and the pool is not held against other agents. Only
    quick tasks are taken: a long one is sent by itself, in a message of its own.
    """
    want = Want(0, [bundle], terms.bundling.tasks, holder=agent, lease=lease, spare=1)
    look = Call("look_and_lock", {**_of_pool(pool, terms), **_of_lanes(pool, want)})
    [seen] = ask(tx, Call("share_pool", {"pool": pool}), *_alone(terms), look)
    capacity = _offered_now(seen, terms)
    if capacity.free <= 0 or agent not in capacity.agents:
        return Begun()
    held = Held(seen.users, seen.room)
    if capacity.lanes_due:
        _catch_up(tx)
        held = _hold(tx, pool, want)
    rows = _choose(tx, pool, capacity, terms, want, held=held)
    return Begun([run_of(_fence(row), row) for row in rows], idle=capacity.free - bool(rows))


def trip_for_first(
    standby: Standby, pool: str, *, agent: str, token: UUID, terms: Terms, lease: timedelta
) -> Trip:
    """Prepare to claim and begin one quick task for an idle slot of an agent's.

    Whoever is not answered can ask for what was taken under the token. Lanes that are due are left
    to the dispatcher.
    """
    want = Want(0, [token], 1, holder=agent, lease=lease, spare=1, parks=False)
    look = {
        **_of_pool(pool, terms),
        **_of_lanes(pool, want),
        "agent": agent,
        "slots_max": terms.slots_max,
    }
    order = _order(pool, question((), Capacity(), terms, want), terms, want, [token])
    return standby.pack(
        Call("lock_pool", {"pool": pool}),
        *_alone(terms),
        Call("look_for_one", look),
        Call("claim_first", order | AS_LOOKED_FOR),
    )


def take_first(standby: Standby, trip: Trip) -> Run | None:
    """Make the trip: claim, begin and commit at once; None if nothing may go."""
    return next((run_of(_fence(row), row) for row in standby.make(trip)), None)


def claim_for(
    db: Db, pool: str, *, agent: str, terms: Terms, serves: UserId | None, types: Sequence[str]
) -> Claimed | None:
    """Claim one task for a free slot of an agent that asks for it, and commit; None if none may go.

    The agent has a pool to itself. It may serve one user alone, and take some types only.
    """

    def work(tx: Connection) -> Claimed | None:
        capacity = _capacity(tx, pool, terms, Call("lock_pool", {"pool": pool}))
        if capacity.free <= 0 or agent not in capacity.agents:
            return None
        # What it takes it says itself; nobody else's handlers matter.
        capacity = replace(capacity, types=types or None, elsewhere=())
        if serves is not None:
            lanes.lock(tx, [serves])
            lanes.read(tx, serves)
        elif capacity.lanes_due:
            _catch_up(tx)
        want = Want(1, [uuid4()], 1, holder=agent, user_id=serves)
        for _ in range(LOOKS_PER_PASS):
            rows = _choose(tx, pool, capacity, terms, want)
            if rows or serves is not None or not _more(tx, pool):
                break
            want = replace(want, spare=want.spare * WIDER)
        return _claimed(rows[0]) if rows else None

    return db.atomically(work)


def claim_one(
    db: Db,
    *,
    holder: str,
    terms: Terms,
    user_id: UserId | None = None,
    task_id: TaskId | None = None,
    capabilities: Sequence[str] = (),
) -> Claimed | None:
    """Claim one task for a caller that runs it itself, and commit; None if none may go.

    The caller brings the slot; everything else is judged as for a pool. It may name the user, and
    one task of that user's.
    """

    def work(tx: Connection) -> Claimed | None:
        # No pool is held here, so the pause of everything is.
        tx.execute(statement("share_pauses"))
        if user_id is not None:
            # The lane before the slot cap, like an agent that goes on in its own slot. Reading
            # brings it to the present, like a pass does for all.
            lanes.lock(tx, [user_id])
            lanes.read(tx, user_id)
        counts = _read_pool(tx, DIRECT, terms)
        if counts.paused:
            return None
        if terms.slots_max is not None and counts.in_all_pools >= terms.slots_max:
            return None
        if user_id is None and counts.lanes_due:
            _catch_up(tx)
        capacity = Capacity(1, (), tuple(capabilities))
        # What one caller cannot do another can: lanes step aside for those alike.
        aside = f"{DIRECT}:{','.join(sorted(capabilities))}"
        want = Want(1, [uuid4()], 1, holder, user_id, task_id, aside=aside)
        for _ in range(LOOKS_PER_PASS):
            rows = _choose(tx, DIRECT, capacity, terms, want)
            if rows or user_id is not None or not _more(tx, aside):
                break
            want = replace(want, spare=want.spare * WIDER)
        return _claimed(rows[0]) if rows else None

    return db.atomically(work)


def wanted(capacity: Capacity, terms: Terms, *, limit: int, holder: str) -> Want:
    """Return what a pass asks of the lanes for all free slots of a pool."""
    messages = min(capacity.free, limit)
    return Want(
        singles=messages,
        bundles=[uuid4() for _ in range(messages)],
        limit=min(limit, messages * terms.bundling.tasks),
        holder=holder,
    )


def _catch_up(tx: Connection) -> bool:
    """Bring lanes to the present, their month and their night window; whether more are due."""
    return lanes.roll_due(tx, CYCLES_PER_PASS).due == CYCLES_PER_PASS


def _more(tx: Connection, pool: str) -> bool:
    return bool(tx.execute(statement("more_to_serve"), {"pool": pool}).scalar_one())


def _capacity(tx: Connection, pool: str, terms: Terms, lock: Call) -> Capacity:
    return _offered_now(_read_pool(tx, pool, terms, lock), terms)


def _offered_now(row: Answer, terms: Terms) -> Capacity:
    return offered(row, terms) if row.is_open and not row.paused else Capacity()


def offered(row: Answer, terms: Terms) -> Capacity:
    """Judge what a pool can take on, from the counts of `pool_capacity`."""
    free = row.slots - row.singles - row.bundles
    if terms.slots_max is not None:
        free = min(free, terms.slots_max - row.in_all_pools)
    # Any worker of the pool may get the message, so only what all can do may be promised.
    shared = set.intersection(*map(set, row.capabilities)) if row.capabilities else set()
    # The same for money: whichever of them gets the message must be able to pay.
    return Capacity(
        free,
        row.agents,
        sorted(shared),
        row.lanes_due,
        row.usd_left,
        elsewhere(row.types, row.house_types),
    )


def elsewhere(
    here: Sequence[Sequence[str]] | None, deployment: Sequence[Sequence[str]] | None
) -> list[str]:
    """Return the types that a pool leaves to others, from what its workers and all workers know.

    One that nobody knows may go anywhere, to end there with a word about it. A worker that names
    no types takes whatever the others take.

    >>> elsewhere([["echo"], ["echo", "sleep"], []], [["echo"], ["echo", "sleep"], ["film"]])
    ['film', 'sleep']
    >>> elsewhere([[]], [["film"]])
    []
    """
    known = {type_ for types in deployment or () for type_ in types}
    named = [set(types) for types in here or () if types]
    shared = set.intersection(*named) if named else known
    return sorted(known - shared)


def _read_pool(tx: Connection, pool: str, terms: Terms, *locks: Call) -> Answer:
    """Count the slots of a pool and of the deployment; with a cap on the deployment, alone."""
    [row] = ask(tx, *locks, *_alone(terms), Call("pool_capacity", _of_pool(pool, terms)))
    return row


def _alone(terms: Terms) -> Sequence[Call]:
    """Return what keeps other pools' passes from counting the same deployment at the same time."""
    return () if terms.slots_max is None else (Call("lock_slot_cap"),)


def _choose(
    tx: Connection,
    pool: str,
    capacity: Capacity,
    terms: Terms,
    want: Want,
    *,
    held: Held | None = None,
) -> Sequence[Answer]:
    held = _hold(tx, pool, want) if held is None else held
    if not held.users:
        return []
    most = min(want.limit, held.room)
    # Postgres would open its source of randomness anew for each.
    tokens = [uuid4() for _ in range(most)]
    # A second statement, so that it judges rows as they are now that the lanes are held.
    asked = question(held.users, capacity, terms, want) | {"limit": most}
    order = _order(pool, asked, terms, want, tokens)
    rows = ask(tx, Call("claim" if most > 1 else "claim_first", order))
    fault("claim.before_commit")
    return rows


def _order(
    pool: str, asked: dict[str, object], terms: Terms, want: Want, tokens: Sequence[UUID]
) -> dict[str, object]:
    """Return what becomes of the chosen tasks, besides what the choice depends on."""
    event = Event.TAKE if want.lease else Event.CLAIM
    return {
        **asked,
        "pool": pool,
        "aside": want.aside or pool,
        "parks": want.parks,
        "bundles": as_array(want.bundles),
        "tokens": as_array(tokens),
        "now": NOW,
        "holder": want.holder,
        "begins": want.lease is not None,
        "ttl": (want.lease or terms.claim_ttl).total_seconds(),
        "sources": sources(event),
        "target": target(event),
    }


def question(
    users: Sequence[UUID], capacity: Capacity, terms: Terms, want: Want
) -> dict[str, object]:
    """Return what the choice among these users' tasks depends on, as the statements call it."""
    return {
        "users": as_array(users),
        "only": want.only,
        "free": want.singles,
        "messages": len(want.bundles),
        "bundle_seconds": terms.bundling.seconds,
        "bundle_max": terms.bundling.tasks,
        "limit": want.limit,
        # Everyone's share; if some have less, the next pass gives the rest to the others.
        "per_lane": ceil(want.limit / max(len(users), 1)),
        "capabilities": list(capacity.capabilities),
        "elsewhere": list(capacity.elsewhere),
        "types": None if capacity.types is None else list(capacity.types),
        "usd_left": capacity.usd_left,
    }


def _hold(tx: Connection, pool: str, want: Want) -> Held:
    if want.user_id is not None:
        return Held([want.user_id], want.limit)
    rows = ask(tx, Call("lock_lanes_to_serve", _of_lanes(pool, want)))
    return Held([row.user_id for row in rows], sum(row.room for row in rows))


def _of_pool(pool: str, terms: Terms) -> dict[str, object]:
    return {"pool": pool, "liveness": terms.liveness.total_seconds()}


def _of_lanes(pool: str, want: Want) -> dict[str, object]:
    few = want.singles + want.spare
    return {"aside": want.aside or pool, "few": few, "limit": want.limit}


def _claimed(row: Answer) -> Claimed:
    return Claimed(
        claim=_fence(row),
        user_id=UserId(row.user_id),
        type=row.type,
        attempt=row.attempts + 1,
        max_attempts=row.max_attempts,
        bundle=row.bundle,
    )


def _fence(row: Answer) -> Claim:
    return Claim(TaskId(row.id), row.epoch, row.token)
