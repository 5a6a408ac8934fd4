"""What held a user's tasks in a period: everything from which the life of tasks is derived.

Most of it was recorded for other purposes: runs, edges, pauses, the sessions of workers, the
ledger. Only the limits and the window of a lane have a table of their own, `lane_history`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, TextClause, func, select

from overnight_server.domain.budgets import Budget
from overnight_server.domain.ids import UserId, show_task
from overnight_server.domain.life import (
    Hold,
    Holder,
    Segment,
    StateChange,
    bridge,
    clip,
    cut_life,
    state_segments,
    times_at_least,
    weigh_times,
    without,
)
from overnight_server.domain.lifecycle import State
from overnight_server.domain.reasons import ReasonCode, ReasonScope
from overnight_server.explain.task_reasons import BUDGET_NAME
from overnight_server.store.statements import statement

Row = Mapping[str, Any]
Period = tuple[datetime, datetime]

# Upper limits on the rows that are read. What lies before the newest runs is shown without the
# reasons that would follow from older ones.
MAX_RUNS = 5_000
MAX_PARENTS = 20
MAX_PAUSES = 500
MAX_SESSIONS = 500
# A run may end a while after its time is used up.
GRACE = timedelta(hours=1)
# Runs of other users are looked up only for waits of some length, and within these bounds.
SHORTEST_QUEUE = timedelta(milliseconds=250)
LONGEST_POOL_RUN = timedelta(hours=6)
SUSPENDED_BY_BUDGET = "budget_exceeded"


@dataclass(frozen=True)
class Life:
    """One task's row, its runs, and its life as segments."""

    task: Row
    runs: Sequence[Row]
    segments: Sequence[Segment]


@dataclass(frozen=True)
class UserPeriod:
    """What concerned all tasks of a user in a period."""

    since: datetime
    until: datetime
    lane: Sequence[Row]
    runs: Sequence[Row]
    pauses: Sequence[Row]
    sessions: Sequence[Row]
    is_partial: bool

    @classmethod
    def read(
        cls,
        tx: Connection,
        user_id: UserId,
        period: Period,
        *,
        longest: timedelta,
        liveness: timedelta,
    ) -> "UserPeriod":
        """Read the newest facts of a period; `longest` is how long a run may hold a slot."""
        since, until = period
        params = {"user_id": user_id, "from_at": since, "to_at": until}
        lane = _rows(tx, statement("life_lane"), params)
        runs = _rows(
            tx,
            statement("life_user_runs"),
            {**params, "longest": (longest + GRACE).total_seconds(), "limit": MAX_RUNS + 1},
        )
        pauses = _rows(tx, statement("life_pauses"), {**params, "limit": MAX_PAUSES})
        sessions = _rows(
            tx,
            statement("life_workers"),
            {**params, "liveness": liveness.total_seconds(), "limit": MAX_SESSIONS},
        )
        return cls(since, until, lane, runs[:MAX_RUNS], pauses, sessions, len(runs) > MAX_RUNS)

    def spans(self) -> list[Period]:
        """Return when the user's runs held slots within the period."""
        runs = ((run["claimed_at"], run["ended_at"]) for run in self.runs)
        return clip(runs, self.since, self.until)

    def limits(self, name: str) -> list[tuple[datetime, datetime, Any]]:
        """Return a column of the lane as consecutive periods."""
        return [
            (begin, end, row[name])
            for row in self.lane
            for begin, end in clip([(row["since"], row["until"])], self.since, self.until)
        ]


def read_lives(
    tx: Connection,
    user_id: UserId,
    task_ids: Sequence[UUID],
    *,
    liveness: timedelta,
    period: UserPeriod | None = None,
    span: Period | None = None,
) -> list[Life]:
    """Return the lives of a user's tasks up to their ends or to now; unknown tasks are left out.

    With a `period`, or the `span` of one to read, only what happened in it has exact causes; the
    caller leaves out the rest.
    """
    # The runs of all users in a period are found with a BRIN index, which needs bitmap scans.
    tx.execute(select(func.set_config("enable_bitmapscan", "on", True)))  # noqa: FBT003 - SQL
    params = {"user_id": user_id, "ids": list(task_ids)}
    tasks = _rows(tx, statement("life_tasks"), params)
    if not tasks:
        return []
    moves = _grouped(_rows(tx, statement("life_moves"), params))
    runs = _grouped(_rows(tx, statement("life_runs"), params))
    edges = _grouped(_rows(tx, statement("life_edges"), {**params, "limit": MAX_PARENTS}))
    if period is None:
        now = tasks[0]["now"]
        begin = min(task["created_at"] for task in tasks)
        end = max((task["finished_at"] or now for task in tasks), default=now)
        longest = timedelta(seconds=tasks[0]["max_task_seconds"])
        span = span or (begin, max(end, begin))
        period = UserPeriod.read(tx, user_id, span, longest=longest, liveness=liveness)
    reader = _LifeReader(tx, user_id, period)
    graph_holds = reader.graph_holds(tasks)
    lock_holds = reader.lock_holds([task for task in tasks if task["locks"]])
    drafts = []
    for task in tasks:
        states = _states(task, moves[task["id"]])
        own = _own_holds(task, states, runs[task["id"]], edges[task["id"]])
        own += graph_holds.get(task["dag_id"], [])
        own += lock_holds[task["id"]]
        draft = _Draft(task, runs[task["id"]], states, own)
        drafts.append(reader.with_user_holds(draft))
    return [draft.finish() for draft in reader.with_queue_holds(drafts)]


@dataclass(frozen=True)
class _Draft:
    """A task with the holds that are known so far."""

    task: Row
    runs: Sequence[Row]
    states: Sequence[Segment]
    holds: Sequence[Hold]

    def ready_times(self) -> list[Period]:
        """Return when the task was ready."""
        return [
            (segment.since, segment.until)
            for segment in self.states
            if segment.state is State.READY
        ]

    def held(self) -> list[tuple[datetime, datetime | None]]:
        """Return when a reason is known that is narrower than the queue."""
        return [(hold.since, hold.until) for hold in self.holds if hold.is_narrower_than_slots]

    def finish(self) -> Life:
        """Return the life."""
        return Life(self.task, self.runs, cut_life(self.states, self.holds))


class _LifeReader:
    """Derives the reasons that held tasks of one user in one period."""

    def __init__(self, tx: Connection, user_id: UserId, period: UserPeriod) -> None:
        self._tx = tx
        self._user_id = user_id
        self._period = period
        self._shared = [*self._plan_holds(), *self._pause_holds(), *self._night_holds()]
        # Most users have no window; their tasks need not look at the lane.
        self._windows = [
            row for row in period.lane if row["window_closed"] or row["carry_over_until"]
        ]
        self._ledgers: dict[datetime, list[Row]] = {}
        self._served: dict[tuple[str, frozenset[str]], _Served] = {}

    def graph_holds(self, tasks: Sequence[Row]) -> dict[UUID, list[Hold]]:
        """Return when the budgets of the tasks' graphs were used up or reserved."""
        found = defaultdict(list)
        dags = sorted({task["dag_id"] for task in tasks})
        for row in self._read(statement("life_graph_holds"), dags=dags):
            found[row["dag_id"]].append(
                _budget_hold(ReasonScope.TASK, Budget.DAG, row["since"], row["until"])
            )
        return found

    def lock_holds(self, tasks: Sequence[Row]) -> Mapping[UUID, list[Hold]]:
        """Return when other tasks held locks that these tasks need."""
        found: dict[UUID, list[Hold]] = defaultdict(list)
        if not tasks:
            return found
        longest = timedelta(seconds=tasks[0]["max_task_seconds"]) + GRACE
        rows = self._read(
            statement("life_locks"),
            tasks=[task["id"] for task in tasks],
            longest=longest.total_seconds(),
            limit=MAX_RUNS,
        )
        for row in rows:
            found[row["waiting_id"]].append(
                Hold(
                    ReasonCode.LOCK,
                    ReasonScope.TASK,
                    row["claimed_at"],
                    row["ended_at"],
                    Holder("task", show_task(row["task_id"]), row["title"]),
                    details={"key": row["key"]},
                )
            )
        return found

    def with_user_holds(self, draft: _Draft) -> _Draft:
        """Add what held all tasks of the user, and the hours that this task needs."""
        task = draft.task
        holds = [*draft.holds, *self._shared, *self._window_holds(task), *self._hours_holds(draft)]
        served = self._served_types(task)
        return replace(draft, holds=[*holds, *served.holds])

    def with_queue_holds(self, drafts: Sequence[_Draft]) -> Iterator[_Draft]:
        """Add when no worker had a free slot, where nothing narrower is known."""
        gaps = [without(draft.ready_times(), draft.held()) for draft in drafts]
        bounds = [
            gap for gaps_of_task in gaps for gap in gaps_of_task if gap[1] - gap[0] > SHORTEST_QUEUE
        ]
        bounds = clip(bounds, self._period.since, self._period.until)
        if not bounds:
            yield from drafts
            return
        runs = self._pool_runs(min(begin for begin, _ in bounds), max(end for _, end in bounds))
        full: dict[tuple[str, frozenset[str]], list[Hold]] = {}
        for draft, times in zip(drafts, gaps, strict=True):
            if not times:
                yield draft
                continue
            key = _needs(draft.task)
            if key not in full:
                full[key] = list(_slot_holds(self._served_types(draft.task), runs))
            yield replace(draft, holds=[*draft.holds, *full[key]])

    def _plan_holds(self) -> Iterator[Hold]:
        """Yield when the user ran as many tasks as the plan allows."""
        limits = self._period.limits("max_active")
        for begin, end in times_at_least(self._period.spans(), limits):
            most = next(most for since, until, most in limits if since <= begin < until)
            yield Hold(
                ReasonCode.PLAN_CONCURRENCY,
                ReasonScope.USER,
                begin,
                self._open(end),
                details={"max_active": most},
            )

    def _pause_holds(self) -> Iterator[Hold]:
        for row in self._period.pauses:
            if row["scope"] == "pool":
                continue
            is_user = row["scope"] == "user"
            yield Hold(
                ReasonCode.PAUSED,
                ReasonScope.USER if is_user else ReasonScope.DEPLOYMENT,
                row["since"],
                row["until"],
                Holder("user", row["paused_by"], row["paused_by_name"]),
                details={
                    "what": "the user" if is_user else "everything",
                    "paused_by": row["paused_by_name"],
                    "note": row["note"],
                },
            )

    def _night_holds(self) -> Iterator[Hold]:
        """Yield when the night's budget was used up or reserved."""
        for begin, end, is_used_up in self._period.limits("night_used_up"):
            if is_used_up:
                yield _budget_hold(ReasonScope.USER, Budget.NIGHT, begin, self._open(end))

    def _window_holds(self, task: Row) -> Iterator[Hold]:
        """Yield when the night window was closed for this task."""
        closed = [
            (begin, end)
            for row in self._windows
            if row["window_closed"] or task["created_at"] >= row["carry_over_until"]
            for begin, end in clip(
                [(row["since"], row["until"])], self._period.since, self._period.until
            )
        ]
        for begin, end in bridge(closed):
            until = self._open(end)
            yield Hold(
                ReasonCode.WINDOW,
                ReasonScope.USER,
                begin,
                until,
                clears_at=task["window_changes_at"] if until is None else until,
            )

    def _hours_holds(self, draft: _Draft) -> Iterator[Hold]:
        """Yield when the month's hours were too few for the time that the task may run."""
        ready = draft.ready_times()
        needs = draft.task["granted"]
        if not ready or not any(row["limit_seconds"] is not None for row in self._period.lane):
            return
        grants = [
            (begin, end, float(run["granted_seconds"]))
            for run in self._period.runs
            for begin, end in clip(
                [(run["claimed_at"], run["ended_at"])], self._period.since, self._period.until
            )
        ]
        for row in self._period.lane:
            limit = row["limit_seconds"]
            spans = clip([(row["since"], row["until"])], self._period.since, self._period.until)
            if limit is None or not any(clip(ready, *span) for span in spans):
                continue
            span = spans[0]
            ledger = self._ledger(row["cycle_started_at"])
            base = sum(entry["seconds"] for entry in ledger if entry["at"] is None)
            entries = [
                (max(entry["at"], span[0]), span[1], entry["seconds"])
                for entry in ledger
                if entry["at"] is not None and entry["at"] < span[1]
            ]
            for begin, end, taken, _ in weigh_times([*grants, *entries], [(*span, 0.0)]):
                left = limit - base - taken
                if needs > left:
                    yield Hold(
                        ReasonCode.MONTHLY_HOURS,
                        ReasonScope.USER,
                        begin,
                        self._open(end),
                        clears_at=row["resets_at"],
                        details={"needs_seconds": needs, "left_seconds": max(0.0, left)},
                    )

    def _ledger(self, cycle: datetime) -> list[Row]:
        if cycle not in self._ledgers:
            self._ledgers[cycle] = self._read(statement("life_ledger"), cycle=cycle, limit=MAX_RUNS)
        return self._ledgers[cycle]

    def _served_types(self, task: Row) -> "_Served":
        key = _needs(task)
        if key not in self._served:
            self._served[key] = _Served.judge(self._period, *key)
        return self._served[key]

    def _pool_runs(self, since: datetime, until: datetime) -> dict[str, list[Period]]:
        """Return when slots of each pool were busy; nothing if there are too many runs."""
        pools = sorted({row["pool"] for row in self._period.sessions})
        rows = _rows(
            self._tx,
            statement("life_pool_runs"),
            {
                "from_at": since,
                "to_at": until,
                "pools": pools,
                "longest": LONGEST_POOL_RUN.total_seconds(),
                "limit": MAX_RUNS + 1,
            },
        )
        found: dict[str, list[Period]] = defaultdict(list)
        if len(rows) > MAX_RUNS:
            return found
        bundles: dict[tuple[str, UUID], list[Period]] = defaultdict(list)
        for row in rows:
            spans = clip([(row["since"], row["until"])], self._period.since, self._period.until)
            if row["bundle"] is None:
                found[row["pool"]] += spans
            else:
                bundles[row["pool"], row["bundle"]] += spans
        for (pool, _), spans in bundles.items():
            if spans:
                # Tasks of one bundle share a slot.
                found[pool].append((min(spans)[0], max(end for _, end in spans)))
        return found

    def _open(self, end: datetime) -> datetime | None:
        """Return the end of a hold; None if it has not ended by the end of the period."""
        return None if end >= self._period.until else end

    def _read(self, query: TextClause, **params: object) -> list[Row]:
        shared = {
            "user_id": self._user_id,
            "from_at": self._period.since,
            "to_at": self._period.until,
        }
        return _rows(self._tx, query, {**shared, **params})


@dataclass(frozen=True)
class _Served:
    """Which pools could run tasks of one kind, and when none could."""

    holds: Sequence[Hold]
    # Each part of the period with the slots of each pool that could run the tasks.
    slots: Sequence[tuple[datetime, datetime, Mapping[str, int]]]

    @classmethod
    def judge(cls, period: UserPeriod, task_type: str, needs: frozenset[str]) -> "_Served":
        """Judge each part of a period in which workers and pauses of pools stay the same."""
        sessions = [
            (begin, end, row)
            for row in period.sessions
            for begin, end in clip([(row["since"], row["until"])], period.since, period.until)
        ]
        pauses = [
            (begin, end, row["target"])
            for row in period.pauses
            if row["scope"] == "pool"
            for begin, end in clip([(row["since"], row["until"])], period.since, period.until)
        ]
        bounds = {period.since, period.until}
        bounds.update(instant for begin, end, _ in (*sessions, *pauses) for instant in (begin, end))
        ordered = sorted(bounds)
        holds: list[Hold] = []
        slots = []
        for begin, end in pairwise(ordered):
            live = [row for since, until, row in sessions if since <= begin < until]
            paused = {pool for since, until, pool in pauses if since <= begin < until}
            code, of_pools = _judge_pools(live, paused, task_type, needs)
            if code is None:
                slots.append((begin, end, of_pools))
            else:
                until = None if end >= period.until else end
                holds.append(Hold(code, ReasonScope.DEPLOYMENT, begin, until))
        return cls(holds, slots)


def _judge_pools(
    live: Sequence[Row], paused: Iterable[str], task_type: str, needs: frozenset[str]
) -> tuple[ReasonCode | None, dict[str, int]]:
    """Return why no pool could run a task, or the slots of the pools that could.

    Any worker of a pool may get a task, so all of them must be able to run it.
    """
    pools = defaultdict(list)
    for row in live:
        pools[row["pool"]].append(row)
    if not pools:
        return ReasonCode.NO_WORKER, {}
    able = {
        name: workers
        for name, workers in pools.items()
        if all(needs <= set(worker["capabilities"]) for worker in workers)
    }
    if not able:
        return ReasonCode.NO_CAPABLE_AGENT, {}
    capable = {
        name: sum(worker["slots"] for worker in workers)
        for name, workers in able.items()
        if all(worker["types"] is None or task_type in worker["types"] for worker in workers)
    }
    if not capable:
        return ReasonCode.HANDLER, {}
    running = {name: slots for name, slots in capable.items() if name not in set(paused)}
    return (None, running) if running else (ReasonCode.PAUSED, {})


def _slot_holds(served: _Served, runs: Mapping[str, Sequence[Period]]) -> Iterator[Hold]:
    """Yield when every slot of every pool that could run the task was busy."""
    for begin, end, slots in served.slots:
        free = [(begin, end)]
        for pool, count in slots.items():
            spans = clip(runs.get(pool, ()), begin, end)
            full = times_at_least(spans, [(begin, end, count)])
            free = _overlap(free, full)
        for since, until in free:
            yield Hold(ReasonCode.SLOTS, ReasonScope.DEPLOYMENT, since, until)


def _overlap(one: Sequence[Period], other: Sequence[Period]) -> list[Period]:
    return [part for period in one for part in clip(other, *period)]


def _own_holds(
    task: Row, states: Sequence[Segment], runs: Sequence[Row], edges: Sequence[Row]
) -> list[Hold]:
    """Return the reasons that follow from the task's own rows."""
    end = task["finished_at"] or task["now"]
    outcomes = {run["epoch"]: run["error_class"] for run in runs}
    holds: list[Hold] = []
    for segment in states:
        is_last = segment.until >= end
        if segment.state is State.RETRYING:
            clears_at = task["retry_at"] if is_last else segment.until
            until = None if is_last else segment.until
            holds.append(
                Hold(
                    ReasonCode.RETRY_AT,
                    ReasonScope.TASK,
                    segment.since,
                    until,
                    clears_at=clears_at,
                )
            )
        elif segment.state is State.PENDING:
            holds += _pending_holds(task, segment, edges, outcomes.get(segment.epoch))
    deadline = task["deadline_at"]
    if deadline is not None and deadline < end:
        since = max(deadline, task["created_at"])
        holds.append(Hold(ReasonCode.DEADLINE, ReasonScope.TASK, since))
    return holds


def _pending_holds(
    task: Row, segment: Segment, edges: Sequence[Row], error_class: str | None
) -> Iterator[Hold]:
    """Yield what a pending task waited for: other tasks, then its start or an approval."""
    open_edges = [
        edge
        for edge in edges
        if (edge["satisfied_at"] is None or edge["satisfied_at"] > segment.since)
        and edge["since_epoch"] <= segment.epoch
    ]
    at = segment.since
    if open_edges:
        unmet = [edge for edge in open_edges if edge["satisfied_at"] is None]
        last = unmet[0] if unmet else max(open_edges, key=lambda edge: edge["satisfied_at"])
        at = segment.until if unmet else min(last["satisfied_at"], segment.until)
        if segment.until - at < timedelta(seconds=1):
            at = segment.until
        yield Hold(
            ReasonCode.DEPENDENCY,
            ReasonScope.TASK,
            segment.since,
            at,
            Holder("task", show_task(last["parent_id"]), last["title"]),
            details={"unmet": len(open_edges), "state": last["state"]},
        )
    if at >= segment.until:
        return
    start_at = task["start_at"]
    if error_class == SUSPENDED_BY_BUDGET or task["awaits_budget"] is not None:
        budget = Budget(task["awaits_budget"] or Budget.TASK)
        yield Hold(
            ReasonCode.APPROVAL,
            ReasonScope.TASK,
            at,
            segment.until,
            details={"budget": BUDGET_NAME[budget]},
        )
    elif start_at is not None and start_at > at:
        yield Hold(
            ReasonCode.START_AT,
            ReasonScope.TASK,
            at,
            segment.until,
            clears_at=start_at,
            details={"start_at": start_at},
        )


def _budget_hold(
    scope: ReasonScope, budget: Budget, since: datetime, until: datetime | None
) -> Hold:
    return Hold(ReasonCode.BUDGET, scope, since, until, details={"budget": BUDGET_NAME[budget]})


def _needs(task: Row) -> tuple[str, frozenset[str]]:
    return task["type"], frozenset(task["required_capabilities"])


def _states(task: Row, rows: Sequence[Row]) -> list[Segment]:
    """Return the states of a task up to its end or to now."""
    created_at = task["created_at"]
    moves = [
        StateChange(row["at"], State(row["to_state"]), row["epoch"], row["reason"]) for row in rows
    ]
    return state_segments(created_at, max(task["finished_at"] or task["now"], created_at), moves)


def _grouped(rows: Sequence[Row]) -> dict[UUID, list[Row]]:
    found: dict[UUID, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["task_id"]].append(row)
    return found


def _rows(tx: Connection, query: TextClause, params: Mapping[str, object]) -> list[Row]:
    # A night reads thousands of rows: a mapping of SQLAlchemy costs several times what a dict does.
    result = tx.execute(query, params)
    names = tuple(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result.all()]
