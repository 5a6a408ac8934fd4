"""Forecast when a user's tasks start and end, by simulating the gate on observed durations."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import TaskNotFound
from overnight.models.tasks import ExpectedTime, Forecast
from overnight_server.domain.budgets import Budget
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.lifecycle import FINAL, State
from overnight_server.domain.reasons import format_instant, join_names
from overnight_server.forecast.distribution import Distribution, Simulate, simulate_nights
from overnight_server.forecast.simulation import HORIZON, WaitingTask
from overnight_server.forecast.snapshot import ForecastInput, read_forecast_input
from overnight_server.gate.claim import ClaimSettings
from overnight_server.store.db import Db
from overnight_server.store.one_at_a_time import OneAtATime
from overnight_server.store.statements import statement

DEFAULT_LIMIT = 50
# Forecasts and plans of one user are computed one after the other.
FORECASTS = OneAtATime(max_waiting=8)
SHARES = (0.1, 0.5, 0.9)
HORIZON_DAYS = round(HORIZON / 86_400)


def forecast_task(
    db: Db,
    user_id: UserId,
    task_id: TaskId,
    claim_settings: ClaimSettings,
    *,
    simulate: Simulate = simulate_nights,
) -> Forecast:
    """Return the forecast of one task; raise TaskNotFound if the user has no such task.

    If no run of its type was observed (`observed_runs` is 0), its timeout is taken as its duration,
    so the forecast is the latest possible and not the most likely. Concurrent equal calls of a
    process share one computation.
    """
    compute = partial(_forecast_task, db, user_id, task_id, claim_settings, simulate)
    return FORECASTS.compute(user_id, task_id, compute)


def _forecast_task(
    db: Db, user_id: UserId, task_id: TaskId, claim_settings: ClaimSettings, simulate: Simulate
) -> Forecast:
    def work(tx: Connection) -> tuple[Mapping[str, Any], ForecastInput]:
        params = {"user_id": user_id, "task_id": task_id}
        row = tx.execute(statement("forecast_task"), params).mappings().one_or_none()
        if row is None:
            raise TaskNotFound
        return dict(row), read_forecast_input(
            tx, user_id, claim_settings, graphs=[row["dag_id"]], types=[row["type"]]
        )

    row, data = db.atomically(work, all_users=True)
    if State(row["state"]) in FINAL:
        return _ended_forecast(row, data)
    distribution = simulate(data.snapshot, data.observed, [task_id])
    return _forecast(data, distribution, row)


def forecast_next(
    db: Db,
    user_id: UserId,
    claim_settings: ClaimSettings,
    *,
    limit: int = DEFAULT_LIMIT,
    simulate: Simulate = simulate_nights,
) -> list[Forecast]:
    """Return forecasts of the user's running tasks and the next ready ones, in starting order.

    Concurrent equal calls of a process share one computation.
    """
    compute = partial(_forecast_next, db, user_id, claim_settings, limit, simulate)
    return FORECASTS.compute(user_id, limit, compute)


def _forecast_next(
    db: Db, user_id: UserId, claim_settings: ClaimSettings, limit: int, simulate: Simulate
) -> list[Forecast]:
    def work(tx: Connection) -> tuple[list[dict[str, Any]], ForecastInput]:
        data = read_forecast_input(tx, user_id, claim_settings)
        running = [task for task in data.snapshot.running if task.user == user_id]
        waiting = {task.id: task for task in data.snapshot.waiting}
        ready = [waiting[task] for task in list(data.positions)[:limit] if task in waiting]
        states = {
            **{task.id: State.RUNNING for task in running},
            **{task.id: State.READY for task in ready},
        }
        titles = tx.execute(statement("forecast_titles"), {"tasks": list(states)}).mappings()
        rows = {row["id"]: dict(row) for row in titles}
        return [
            rows[task] | {"state": state.value} for task, state in states.items() if task in rows
        ], data

    rows, data = db.atomically(work, all_users=True)
    distribution = simulate(data.snapshot, data.observed, [row["id"] for row in rows])
    return [_forecast(data, distribution, row) for row in rows[:limit]]


def expected(
    data: ForecastInput, distribution: Distribution, task: UUID
) -> tuple[ExpectedTime, ExpectedTime]:
    """Return when a task is expected to start and to finish."""
    starts = [_at(data, distribution.start(task, share)) for share in SHARES]
    finishes = [_at(data, distribution.finish(task, share)) for share in SHARES]
    return _band(starts), _band(finishes)


def expected_last(data: ForecastInput, distribution: Distribution) -> ExpectedTime:
    """Return when all tasks of the distribution are expected to have ended."""
    return _band([_at(data, distribution.last_finish(share)) for share in SHARES])


def _band(instants: Sequence[datetime | None]) -> ExpectedTime:
    p10_at, p50_at, p90_at = instants
    return ExpectedTime(p10_at=p10_at, p50_at=p50_at, p90_at=p90_at)


def notes_on(
    data: ForecastInput,
    distribution: Distribution,
    waiting: Sequence[WaitingTask],
    types: Sequence[str] = (),
) -> list[str]:
    """Return what makes a forecast of these tasks or types uncertain, one sentence each."""
    notes = []
    all_types = {*types, *(task.type for task in waiting)}
    unobserved = sorted(type_ for type_ in all_types if not data.observed.has_runs_of(type_))
    if unobserved:
        names = ", ".join(unobserved)
        notes.append(f"no run of type {names} was observed yet: its timeout is used as duration")
    if data.lane["all_paused"]:
        notes.append("everything is paused: nothing starts before it is resumed")
    elif not data.snapshot.pools:
        notes.append(_why_no_pool(data))
    if data.lane["paused"]:
        notes.append("the user is paused: nothing starts before the user is resumed")
    if data.lane["ready"] > len(data.positions):
        notes.append(f"only the first {len(data.positions)} of the user's tasks were simulated")
    if data.lane["has_graph_budgets"]:
        notes.append("budgets of graphs are not simulated: they may keep tasks waiting for longer")
    if any(task.usd for task in waiting):
        if any(worker["has_budget"] for worker in data.workers):
            notes.append("budgets of agents are not simulated: they may keep tasks waiting")
        budget = data.lane["night_usd"]
        if budget is not None and any(task.usd > budget for task in waiting):
            notes.append(
                f"one task needs more than the ${budget:.2f} of a whole night: it does not start"
            )
    if distribution.is_cut:
        notes.append("the simulation stopped at its maximum of starts: later tasks have no times")
    if data.lanes_left_out:
        notes.append(f"{data.lanes_left_out} users further back were left out of the simulation")
    return notes


def _why_no_pool(data: ForecastInput) -> str:
    """Return why no pool accepts tasks."""
    paused = sorted({worker["name"] for worker in data.workers if worker["paused"]})
    if paused:
        pools = "the pool {} is" if len(paused) == 1 else "the pools {} are"
        return f"{pools.format(join_names(paused))} paused: nothing starts before a pool is resumed"
    if data.workers:
        who = "the only worker drains" if len(data.workers) == 1 else "all workers drain"
        return f"{who}: nothing starts before another joins or `overnight drain --undo`"
    return "no worker is alive: nothing starts before one joins"


def _at(data: ForecastInput, seconds: float | None) -> datetime | None:
    return None if seconds is None else data.now + timedelta(seconds=seconds)


def _forecast(data: ForecastInput, distribution: Distribution, row: Mapping[str, Any]) -> Forecast:
    start, finish = expected(data, distribution, row["id"])
    waiting = [task for task in data.snapshot.waiting if task.id == row["id"]]
    notes = notes_on(data, distribution, waiting, [row["type"]])
    if row.get("awaits_budget") == Budget.NIGHT:
        notes.append("it has used up the night's budget and continues when the next night begins")
    elif row.get("awaits_budget") is not None:
        notes.append("it waits for an operator to approve more money and does not start before")
    start_at = row.get("start_at")
    if start_at is not None and start_at > data.now:
        notes.append(f"it may not start before {format_instant(start_at)}")
    if finish.p50_at is None and not notes:
        notes = [f"it is not expected to start within {HORIZON_DAYS} days"]
    return Forecast(
        id=show_task(row["id"]),
        title=row["title"],
        type=row["type"],
        state=row["state"],
        queue_position=data.positions.get(row["id"]),
        start=start,
        finish=finish,
        observed_runs=len(data.observed.recent.get(row["type"], ())),
        nights=distribution.nights,
        made_at=data.now,
        notes=notes,
    )


def _ended_forecast(row: Mapping[str, Any], data: ForecastInput) -> Forecast:
    """Return the forecast of a task that has ended: its actual times."""
    started_at, finished_at = row["started_at"], row["finished_at"]
    return Forecast(
        id=show_task(row["id"]),
        title=row["title"],
        type=row["type"],
        state=row["state"],
        queue_position=None,
        start=_band([started_at] * 3),
        finish=_band([finished_at] * 3),
        observed_runs=len(data.observed.recent.get(row["type"], ())),
        nights=0,
        made_at=data.now,
        notes=["it has ended"],
    )
