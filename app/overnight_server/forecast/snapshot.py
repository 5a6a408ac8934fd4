"""Read the snapshot that a simulation starts from; every read is bounded and uses an index."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, TextClause

from overnight.errors import UserNotFound
from overnight.models.enums import AtClosing
from overnight_server.domain.budgets import Budget
from overnight_server.domain.graphs import is_met_by_success
from overnight_server.domain.ids import UserId
from overnight_server.domain.priority import MAX_POSITION
from overnight_server.domain.windows import (
    NightWindow,
    WindowOpenings,
    is_zone,
    night_after,
    window_state,
)
from overnight_server.forecast.durations import ObservedDurations
from overnight_server.forecast.simulation import (
    LaneState,
    PoolState,
    RunningTask,
    Snapshot,
    WaitingTask,
)
from overnight_server.gate.claim import ClaimSettings, accepted_types
from overnight_server.store.statements import statement
from overnight_server.store.windows import window_of

# Upper limits on the rows that are read. Tasks behind them are counted and simulated as copies.
MAX_LANES = 500
MAX_OTHER_TASKS = 4_000
MIN_TASKS_PER_LANE = 8
MAX_LATER = 500
MAX_PENDING = 3_000
# Workers and agents that serve the user, and agents of the other users; the rest are left out.
MAX_WORKERS = 500
MAX_OTHER_AGENTS = 1_000
# No task has this id, so a task that waits for it never starts.
NOBODY = UUID(int=0)


@dataclass(frozen=True)
class ClosedWindow:
    """A closed window that still lets tasks start which were created before it closed."""

    closed_at: datetime
    opens_in: float


@dataclass(frozen=True)
class ForecastInput:
    """A snapshot for the simulation and what else a forecast for one user needs.

    `positions` are those of the user's own ready tasks in the queue. `ready_in` is after how many
    seconds the user's window lets a task start that is created now. `lanes_left_out` is how many
    lanes were not read.
    """

    snapshot: Snapshot
    now: datetime
    lane: Mapping[str, Any]
    observed: ObservedDurations
    positions: Mapping[UUID, int]
    lanes_left_out: int
    ready_in: float = 0.0
    # The live workers that serve the user, including draining ones and those of paused pools.
    workers: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class _Windows:
    """The night windows of all lanes: when each opens, and which are closed for new tasks only."""

    opens: Mapping[UUID, WindowOpenings]
    closed: Mapping[UUID, ClosedWindow]
    # After how many seconds the next night's budget begins.
    next_budget_in: Mapping[UUID, float]

    def ready_in(self, user_id: UUID, created_at: datetime) -> float:
        """Return after how many seconds the user's window lets a task of this age start."""
        closed = self.closed.get(user_id)
        return 0.0 if closed is None or created_at < closed.closed_at else closed.opens_in


def read_forecast_input(
    tx: Connection,
    user_id: UserId,
    claim_settings: ClaimSettings,
    *,
    graphs: Iterable[UUID] = (),
    types: Iterable[str] = (),
) -> ForecastInput:
    """Read what a simulation of this user's tasks needs.

    Graphs in `graphs` and durations of `types` are read in addition. Raises UserNotFound.
    """
    lanes = _rows(tx, statement("forecast_lanes"), user_id=user_id, lanes=MAX_LANES)
    if not lanes or lanes[0]["user_id"] != user_id:
        raise UserNotFound
    running = _rows(tx, statement("forecast_active"))
    ready = _ready(tx, user_id, lanes)
    later = _rows(tx, statement("forecast_later"), limit=MAX_LATER)
    # A task that is its own graph has no dependents.
    started_graphs = {
        row["dag_id"] for row in (*running, *ready, *later) if row["dag_id"] != row["id"]
    }
    started_graphs.update(graphs)
    pending = _rows(
        tx, statement("forecast_pending"), graphs=sorted(started_graphs), limit=MAX_PENDING
    )
    edges = (
        _rows(tx, statement("forecast_edges"), tasks=[row["id"] for row in pending])
        if pending
        else []
    )
    running_ids = {row["id"] for row in running}
    # A task may have changed its state between two queries; it is then counted once.
    waiting = {row["id"]: row for row in (*pending, *later, *ready) if row["id"] not in running_ids}
    read_per_user = Counter(row["user_id"] for row in ready)
    all_types = {row["type"] for row in (*running, *waiting.values())} | set(types)
    windows = _windows(lanes)
    workers = _rows(
        tx,
        statement("forecast_pools"),
        user_id=user_id,
        liveness=claim_settings.liveness.total_seconds(),
        limit=MAX_WORKERS,
    )
    other_agents = _rows(
        tx,
        statement("forecast_other_agents"),
        users=[row["user_id"] for row in lanes if row["user_id"] != user_id],
        capabilities=sorted({need for row in waiting.values() for need in _needs(row)}),
        types=sorted({row["type"] for row in waiting.values()}),
        limit=MAX_OTHER_AGENTS,
    )
    snapshot = Snapshot(
        # While everything is paused there is no open pool.
        pools=[] if lanes[0]["all_paused"] else [*_pools(workers), *map(_joint_pool, other_agents)],
        lanes=[
            replace(
                _lane(row, row["ready"] - read_per_user[row["user_id"]]),
                opens=windows.opens.get(row["user_id"]),
                night_ends_in=windows.next_budget_in[row["user_id"]],
            )
            for row in lanes
        ],
        running=_running(running, other_agents),
        waiting=[_waiting(row, windows) for row in waiting.values()],
        edges=[*map(_edge, edges), *_approval_edges(waiting.values())],
        slots_max=claim_settings.slots_max,
    )
    own_tasks = [row["id"] for row in ready if row["user_id"] == user_id]
    durations = _rows(tx, statement("forecast_durations"), types=sorted(all_types))
    return ForecastInput(
        snapshot=snapshot,
        now=lanes[0]["now"],
        lane=lanes[0],
        observed=ObservedDurations({row["type"]: row["recent"] for row in durations}),
        positions={task: position for position, task in enumerate(own_tasks, start=1)},
        lanes_left_out=max(0, lanes[0]["lanes_in_all"] - len(lanes)),
        ready_in=windows.ready_in(user_id, lanes[0]["now"]),
        workers=workers,
    )


def _rows(tx: Connection, query: TextClause, **params: object) -> Sequence[Mapping[str, Any]]:
    return [dict(row) for row in tx.execute(query, params).mappings()]


def _ready(
    tx: Connection, user_id: UserId, lanes: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    return _rows(
        tx,
        statement("forecast_ready"),
        user_id=user_id,
        users=[row["user_id"] for row in lanes],
        max_position=MAX_POSITION,
        per_lane=max(MIN_TASKS_PER_LANE, MAX_OTHER_TASKS // len(lanes)),
    )


def _pools(workers: Sequence[Mapping[str, Any]]) -> list[PoolState]:
    """Return the pools that are not paused, as the gate sees them.

    A pool offers the capabilities that all its workers have, because any of them may get a task.
    """
    pools: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for worker in workers:
        if not worker["paused"] and not worker["draining"]:
            pools[worker["name"]].append(worker)
    return [
        PoolState(
            name,
            slots=sum(worker["slots"] for worker in members),
            capabilities=frozenset.intersection(
                *(frozenset(worker["capabilities"]) for worker in members)
            ),
            types=_accepted_types(members),
            serves=members[0]["serves"],
        )
        for name, members in pools.items()
    ]


def _joint_pool(agents: Mapping[str, Any]) -> PoolState:
    """Return the agents of another user as one pool, which runs what any of them can run.

    They matter only because tasks that they take leave the slots of all users to others. So the
    simulation has at most one such pool for each lane, however many agents there are.
    """
    return PoolState(
        _joint_name(agents),
        slots=agents["slots"],
        capabilities=frozenset(agents["capabilities"]),
        types=None if agents["accepts_all"] else frozenset(agents["types"]),
        serves=agents["serves"],
    )


def _joint_name(agents: Mapping[str, Any]) -> str:
    return f"agents of {agents['serves']}"


def _accepted_types(members: Sequence[Mapping[str, Any]]) -> frozenset[str] | None:
    """Return the types that a pool accepts; None is all."""
    types = accepted_types([worker["types"] for worker in members])
    return None if types is None else frozenset(types)


def _lane(row: Mapping[str, Any], unread: int) -> LaneState:
    # A month that is over counts as reset, although the reset is not written yet.
    is_due = row["resets_in"] <= 0
    left = row["seconds_left"]
    if left is not None and is_due:
        left = float(row["limit_seconds"] - row["reserved_seconds"])
    return LaneState(
        user=row["user_id"],
        max_active=row["max_active"],
        # The simulation counts served lanes up from 1, so all earlier times are negative.
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


def _next_night(window: NightWindow | None, now: datetime, moment: float) -> float:
    return (night_after(window, now + timedelta(seconds=moment)) - now).total_seconds()


def _windows(lanes: Sequence[Mapping[str, Any]]) -> _Windows:
    opens: dict[UUID, WindowOpenings] = {}
    closed: dict[UUID, ClosedWindow] = {}
    next_budget_in: dict[UUID, float] = {}
    # Many users have the same window, so its nights are computed once.
    nights_of: dict[NightWindow, WindowOpenings] = {}
    for row in lanes:
        window, now = window_of(row), row["now"]
        ends_at = row["night_ends_at"] or night_after(window, now)
        next_budget_in[row["user_id"]] = (ends_at - now).total_seconds()
        if window is None:
            continue
        nights = nights_of.setdefault(window, WindowOpenings(window, now))
        if window.at_closing is not AtClosing.CONTINUE or not is_zone(window.zone):
            opens[row["user_id"]] = nights
        elif nights(0) > 0:
            # WaitingTask tasks are older than every later closing, so only the last one matters.
            closed[row["user_id"]] = ClosedWindow(window_state(window, now).closed_at, nights(0))
    return _Windows(opens, closed, next_budget_in)


def _running(
    rows: Sequence[Mapping[str, Any]], other_agents: Sequence[Mapping[str, Any]]
) -> list[RunningTask]:
    joint_pools = {pool: _joint_name(agents) for agents in other_agents for pool in agents["pools"]}
    bundles: set[UUID | None] = set()
    running = []
    for row in rows:
        running.append(
            RunningTask(
                id=row["id"],
                user=row["user_id"],
                type=row["type"],
                pool=joint_pools.get(row["pool"], row["pool"]),
                granted=float(row["reserved_seconds"]),
                elapsed=row["elapsed"],
                locks=_locks(row),
                usd=row["usd"],
                holds_slot=row["bundle"] is None or row["bundle"] not in bundles,
            )
        )
        bundles.add(row["bundle"])
    return running


def _waiting(row: Mapping[str, Any], windows: _Windows) -> WaitingTask:
    ready_in = max(row["ready_in"], windows.ready_in(row["user_id"], row["created_at"]))
    if row["awaits_budget"] == Budget.NIGHT:
        # The task continues by itself with the next night's budget.
        ready_in = max(ready_in, windows.next_budget_in.get(row["user_id"], inf))
    return WaitingTask(
        id=row["id"],
        user=row["user_id"],
        type=row["type"],
        sort_key=row["sort_key"],
        granted=float(row["granted"]),
        locks=_locks(row),
        needs=frozenset(_needs(row)),
        ready_in=ready_in,
        usd=row["usd"],
        start_by=inf if row["start_by"] is None else row["start_by"],
    )


def awaited_task(parent: UUID, condition: str, on_unmet: str) -> UUID:
    """Return the task that the child of an edge waits for in the simulation.

    Every simulated run succeeds, so a child that waits for a failure waits for NOBODY.
    """
    return parent if is_met_by_success(condition, on_unmet) else NOBODY


def _edge(row: Mapping[str, Any]) -> tuple[UUID, UUID]:
    return awaited_task(row["parent_id"], row["condition"], row["on_unmet"]), row["child_id"]


def _approval_edges(rows: Iterable[Mapping[str, Any]]) -> list[tuple[UUID, UUID]]:
    """Return edges to NOBODY for tasks that wait for an approval: its time is unknown."""
    return [
        (NOBODY, row["id"])
        for row in rows
        if row["awaits_budget"] is not None and row["awaits_budget"] != Budget.NIGHT
    ]


def _needs(row: Mapping[str, Any]) -> Sequence[str]:
    needed: Sequence[str] = row["required_capabilities"]
    return needed


def _locks(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row["locks"] or ())
