"""Read the snapshot that a simulation starts from, through indexes and no more than it needs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import Any, Self
from uuid import UUID

from sqlalchemy import Connection, TextClause

from overnight.errors import UserNotFound
from overnight_server.domain.budgets import Budget
from overnight_server.domain.graphs import is_met_by_success
from overnight_server.domain.ids import UserId
from overnight_server.domain.priority import MAX_POSITION
from overnight_server.domain.windows import AtClosing, Nights, Window, hours, is_zone, night_after
from overnight_server.forecast.durations import Observed
from overnight_server.forecast.simulation import LaneState, PoolState, Running, Snapshot, Waiting
from overnight_server.gate.claim import types_of_other_pools
from overnight_server.settings import Settings
from overnight_server.store.statements import statement
from overnight_server.store.windows import window_of

# How much is read at most. What waits behind it is counted, and taken to be like it.
LANES = 500
OTHERS = 4_000
LEAST_PER_LANE = 8
RETRIES = 500
PENDING = 3_000
# No task has this id: what waits for it never starts.
NOBODY = UUID(int=0)


@dataclass(frozen=True)
class Workers:
    """Which workers count: those heard of within `liveness`, and no more slots than `slots_max`."""

    liveness: timedelta
    slots_max: int | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Count those that the gate would count."""
        return cls(timedelta(seconds=settings.worker_liveness), settings.slots_max)


@dataclass(frozen=True)
class Late:
    """A window that closed for what is made after that, and how long until it opens."""

    closed_at: datetime
    opens_in: float


@dataclass(frozen=True)
class Sight:
    """What was seen of the deployment, when, and how many lanes were not looked into.

    `places` says where the user's own ready tasks stand, `lets_in` for how many seconds the user's
    window keeps a task out that is made now and was not waiting when it closed.
    """

    snapshot: Snapshot
    now: datetime
    lane: Mapping[str, Any]
    history: Observed
    places: Mapping[UUID, int]
    lanes_left_out: int
    lets_in: float = 0.0
    # The workers that live, also those whose pool is paused and those that drain.
    workers: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class _Windows:
    """The users' night windows: when each lane opens, and when each lets in what came too late."""

    opens: Mapping[UUID, Nights]
    late: Mapping[UUID, Late]
    # When the money of a new night comes.
    paid_in: Mapping[UUID, float]

    def lets_in(self, user_id: UUID, made_at: datetime) -> float:
        """Return in how many seconds the user's window takes a task that was made then."""
        late = self.late.get(user_id)
        return 0.0 if late is None or made_at < late.closed_at else late.opens_in


def look(
    tx: Connection,
    user_id: UserId,
    workers: Workers,
    *,
    graphs: Iterable[UUID] = (),
    types: Iterable[str] = (),
) -> Sight:
    """Read what a rehearsal of this user's tasks needs; `graphs` and `types` add to it."""
    lanes = _rows(tx, statement("forecast_lanes"), user_id=user_id, lanes=LANES)
    if not lanes or lanes[0]["user_id"] != user_id:
        raise UserNotFound
    running = _rows(tx, statement("forecast_active"))
    ready = _ready(tx, user_id, lanes)
    retries = _rows(tx, statement("forecast_retries"), limit=RETRIES)
    # A lone task, a graph of its own, releases nothing.
    begun = {row["dag_id"] for row in (*running, *ready, *retries) if row["dag_id"] != row["id"]}
    begun.update(graphs)
    pending = _rows(tx, statement("forecast_pending"), graphs=sorted(begun), limit=PENDING)
    edges = (
        _rows(tx, statement("forecast_edges"), tasks=[row["id"] for row in pending])
        if pending
        else []
    )
    held = {row["id"] for row in running}
    # A task may have moved on between two of the readings: it is then counted once.
    waiting = {row["id"]: row for row in (*pending, *retries, *ready) if row["id"] not in held}
    read = Counter(row["user_id"] for row in ready)
    kinds = {row["type"] for row in (*running, *waiting.values())} | set(types)
    windows = _windows(lanes)
    present = _rows(tx, statement("forecast_pools"), liveness=workers.liveness.total_seconds())
    snapshot = Snapshot(
        # To pause everything is to have no pool at all.
        pools=[] if lanes[0]["all_paused"] else _pools(present),
        lanes=[
            replace(
                _lane(row, row["ready"] - read[row["user_id"]]),
                opens=windows.opens.get(row["user_id"]),
                night_ends_in=windows.paid_in[row["user_id"]],
            )
            for row in lanes
        ],
        running=_running(running),
        waiting=[_waiting(row, windows) for row in waiting.values()],
        edges=[*map(_edge, edges), *_asking(waiting.values())],
        slots_max=workers.slots_max,
    )
    own = [row["id"] for row in ready if row["user_id"] == user_id]
    paces = _rows(tx, statement("forecast_durations"), types=sorted(kinds))
    return Sight(
        snapshot=snapshot,
        now=lanes[0]["now"],
        lane=lanes[0],
        history=Observed({row["type"]: row["recent"] for row in paces}),
        places={task: place for place, task in enumerate(own, start=1)},
        lanes_left_out=max(0, lanes[0]["lanes_in_all"] - len(lanes)),
        lets_in=windows.lets_in(user_id, lanes[0]["now"]),
        workers=present,
    )


def _rows(tx: Connection, question: TextClause, **values: object) -> Sequence[Mapping[str, Any]]:
    return [dict(row) for row in tx.execute(question, values).mappings()]


def _ready(
    tx: Connection, user_id: UserId, lanes: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    return _rows(
        tx,
        statement("forecast_ready"),
        user_id=user_id,
        users=[row["user_id"] for row in lanes],
        max_position=MAX_POSITION,
        per_lane=max(LEAST_PER_LANE, OTHERS // len(lanes)),
    )


def _pools(workers: Sequence[Mapping[str, Any]]) -> list[PoolState]:
    """Return the open pools as the gate sees them: only what all of a pool's workers can do counts.

    Any of them may get the message.
    """
    known = [worker["types"] for worker in workers]
    known += (workers[0]["lately"] or []) if workers else []
    pools: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for worker in workers:
        if not worker["paused"] and not worker["draining"]:
            pools[worker["name"]].append(worker)
    return [
        PoolState(
            name,
            slots=sum(worker["slots"] for worker in here),
            capabilities=frozenset.intersection(
                *(frozenset(worker["capabilities"]) for worker in here)
            ),
            elsewhere=_left_to_others(here, known),
            serves=here[0]["serves"],
        )
        for name, here in pools.items()
    ]


def _left_to_others(
    here: Sequence[Mapping[str, Any]], known: Sequence[Sequence[str]]
) -> frozenset[str]:
    """Return the types that a pool leaves to others; an agent outside may take whatever comes."""
    if here[0]["is_outside"] and not here[0]["types"]:
        return frozenset()
    return frozenset(types_of_other_pools([worker["types"] for worker in here], known))


def _lane(row: Mapping[str, Any], unread: int) -> LaneState:
    # A month that is over counts as begun anew, whether or not anyone has noticed yet.
    is_due = row["resets_in"] <= 0
    left = row["seconds_left"]
    if left is not None and is_due:
        left = float(row["limit_seconds"] - row["reserved_seconds"])
    return LaneState(
        user=row["user_id"],
        max_active=row["max_active"],
        # Turns of the rehearsal count up from one: all of the past lies before them.
        served=row["served"] - row["now"].timestamp() - 1,
        weight=row["plan_weight"],
        seconds_left=left,
        month_seconds=float(row["limit_seconds"] or 0),
        resets_in=inf if is_due else row["resets_in"],
        paused=row["paused"],
        unread=max(0, unread),
        usd_left=row["usd_left"],
        night_usd=row["night_usd"] or 0.0,
        next_night=partial(_next_night, window_of(row), row["now"]),
    )


def _next_night(window: Window | None, now: datetime, moment: float) -> float:
    return (night_after(window, now + timedelta(seconds=moment)) - now).total_seconds()


def _windows(lanes: Sequence[Mapping[str, Any]]) -> _Windows:
    opens: dict[UUID, Nights] = {}
    late: dict[UUID, Late] = {}
    paid_in: dict[UUID, float] = {}
    # Many users keep the same hours.
    known: dict[Window, Nights] = {}
    for row in lanes:
        window, now = window_of(row), row["now"]
        ends_at = row["night_ends_at"] or night_after(window, now)
        paid_in[row["user_id"]] = (ends_at - now).total_seconds()
        if window is None:
            continue
        nights = known.setdefault(window, Nights(window, now))
        if window.at_closing is not AtClosing.CONTINUE or not is_zone(window.zone):
            opens[row["user_id"]] = nights
        elif nights(0) > 0:
            # What waits now was made before every closing to come; only the last one matters.
            late[row["user_id"]] = Late(hours(window, now).closed_at, nights(0))
    return _Windows(opens, late, paid_in)


def _running(rows: Sequence[Mapping[str, Any]]) -> list[Running]:
    bundles: set[UUID | None] = set()
    running = []
    for row in rows:
        running.append(
            Running(
                id=row["id"],
                user=row["user_id"],
                type=row["type"],
                pool=row["pool"],
                granted=float(row["reserved_seconds"]),
                elapsed=row["elapsed"],
                locks=_locks(row),
                usd=row["usd"],
                holds_slot=row["bundle"] is None or row["bundle"] not in bundles,
            )
        )
        bundles.add(row["bundle"])
    return running


def _waiting(row: Mapping[str, Any], windows: _Windows) -> Waiting:
    ready_in = max(row["ready_in"], windows.lets_in(row["user_id"], row["created_at"]))
    if row["awaits_budget"] == Budget.NIGHT:
        # A new night lets it go on by itself.
        ready_in = max(ready_in, windows.paid_in.get(row["user_id"], inf))
    return Waiting(
        id=row["id"],
        user=row["user_id"],
        type=row["type"],
        sort_key=row["sort_key"],
        granted=float(row["granted"]),
        locks=_locks(row),
        needs=frozenset(row["required_capabilities"]),
        ready_in=ready_in,
        usd=row["usd"],
        start_by=inf if row["start_by"] is None else row["start_by"],
    )


def awaited(parent: UUID, condition: str, on_unmet: str) -> UUID:
    """Return whom the child of an edge waits for in a rehearsal.

    Runs are taken to succeed, so what waits for a failure waits for nobody who will come.
    """
    return parent if is_met_by_success(condition, on_unmet) else NOBODY


def _edge(row: Mapping[str, Any]) -> tuple[UUID, UUID]:
    return awaited(row["parent_id"], row["condition"], row["on_unmet"]), row["child_id"]


def _asking(rows: Iterable[Mapping[str, Any]]) -> list[tuple[UUID, UUID]]:
    """Let what asks for more money wait for an answer that nobody foresees."""
    return [
        (NOBODY, row["id"])
        for row in rows
        if row["awaits_budget"] is not None and row["awaits_budget"] != Budget.NIGHT
    ]


def _locks(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row["locks"] or ())
