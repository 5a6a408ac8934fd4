"""When a user's tasks will start and end: the gate's own rules, simulated on what runs took."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import TaskNotFound
from overnight.models.tasks import ExpectedTime, Forecast
from overnight_server.domain.budgets import Budget
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.lifecycle import FINAL, State
from overnight_server.domain.reasons import listed
from overnight_server.forecast.outlook import Outlook, foresee
from overnight_server.forecast.simulation import HORIZON, Simulation, Waiting
from overnight_server.forecast.snapshot import Sight, Workers, look
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

NEXT = 50
SHARES = (0.1, 0.5, 0.9)
DAYS = round(HORIZON / 86_400)


def forecast_task(db: Db, user_id: UserId, task_id: TaskId, workers: Workers) -> Forecast:
    """Foretell one of the user's tasks; another user's looks exactly like none."""

    def work(tx: Connection) -> tuple[Mapping[str, Any], Sight]:
        named = {"user_id": user_id, "task_id": task_id}
        row = tx.execute(statement("forecast_task"), named).mappings().one_or_none()
        if row is None:
            raise TaskNotFound
        return dict(row), look(tx, user_id, workers, graphs=[row["dag_id"]], types=[row["type"]])

    row, sight = db.atomically(work, all_users=True)
    if State(row["state"]) in FINAL:
        return _over(row, sight)
    outlook = foresee(Simulation(sight.snapshot), sight.history, [task_id])
    return _view(sight, outlook, row)


def forecast_next(
    db: Db, user_id: UserId, workers: Workers, *, limit: int = NEXT
) -> list[Forecast]:
    """Foretell the user's running tasks and the next ready ones, in the order they are taken."""

    def work(tx: Connection) -> tuple[list[dict[str, Any]], Sight]:
        sight = look(tx, user_id, workers)
        running = [task for task in sight.snapshot.running if task.user == user_id]
        known = {task.id: task for task in sight.snapshot.waiting}
        ready = [known[task] for task in list(sight.places)[:limit] if task in known]
        states = {
            **{task.id: State.RUNNING for task in running},
            **{task.id: State.READY for task in ready},
        }
        found = tx.execute(statement("forecast_titles"), {"tasks": list(states)}).mappings()
        rows = {row["id"]: dict(row) for row in found}
        return [
            rows[task] | {"state": state.value} for task, state in states.items() if task in rows
        ], sight

    rows, sight = db.atomically(work, all_users=True)
    outlook = foresee(Simulation(sight.snapshot), sight.history, [row["id"] for row in rows])
    return [_view(sight, outlook, row) for row in rows[:limit]]


def expected(sight: Sight, outlook: Outlook, task: UUID) -> tuple[ExpectedTime, ExpectedTime]:
    """Return when a task is expected to start and to finish."""
    starts = [_at(sight, outlook.start(task, share)) for share in SHARES]
    finishes = [_at(sight, outlook.finish(task, share)) for share in SHARES]
    return _band(starts), _band(finishes)


def expected_last(sight: Sight, outlook: Outlook) -> ExpectedTime:
    """Return when all of the foreseen tasks are expected to have ended."""
    return _band([_at(sight, outlook.last_finish(share)) for share in SHARES])


def _band(instants: Sequence[datetime | None]) -> ExpectedTime:
    p10_at, p50_at, p90_at = instants
    return ExpectedTime(p10_at=p10_at, p50_at=p50_at, p90_at=p90_at)


def notes_on(
    sight: Sight, outlook: Outlook, waiting: Sequence[Waiting], types: Sequence[str] = ()
) -> list[str]:
    """Return what limits the trust in a forecast of these tasks, and of tasks of these types."""
    notes = []
    known = {*types, *(task.type for task in waiting)}
    unseen = sorted(type_ for type_ in known if not sight.history.knows(type_))
    if unseen:
        names = ", ".join(unseen)
        notes.append(f"no run of type {names} was seen yet: its timeout is taken for its duration")
    if sight.lane["all_paused"]:
        notes.append("everything is paused: nothing starts before that ends")
    elif not sight.snapshot.pools:
        notes.append(_nobody(sight))
    if sight.lane["paused"]:
        notes.append("the user is paused: nothing starts before that ends")
    if sight.lane["ready"] > len(sight.places):
        notes.append(f"only the first {len(sight.places)} of the user's tasks were simulated")
    if sight.lane["has_graph_budgets"]:
        notes.append("budgets of graphs are not simulated: they may keep tasks waiting for longer")
    if any(task.usd for task in waiting):
        if any(worker["has_budget"] for worker in sight.workers):
            notes.append("budgets of agents are not simulated: they may keep tasks waiting")
        most = sight.lane["night_usd"]
        if most is not None and any(task.usd > most for task in waiting):
            notes.append(f"one needs more than the ${most:.2f} of a whole night: it does not start")
    if outlook.is_cut:
        notes.append("the rehearsal was broken off after its share of starts: later ones are blank")
    if sight.lanes_left_out:
        notes.append(f"{sight.lanes_left_out} users further back were left out of the rehearsal")
    return notes


def _nobody(sight: Sight) -> str:
    """Say why no pool takes on work."""
    paused = sorted({worker["name"] for worker in sight.workers if worker["paused"]})
    if paused:
        pools = "the pool {} is" if len(paused) == 1 else "the pools {} are"
        return f"{pools.format(listed(paused))} paused: nothing starts before that ends"
    if sight.workers:
        who = "the only worker drains" if len(sight.workers) == 1 else "all workers drain"
        return f"{who}: nothing starts before another joins or `overnight drain --undo`"
    return "no worker is alive: nothing starts before one joins"


def _at(sight: Sight, seconds: float | None) -> datetime | None:
    return None if seconds is None else sight.now + timedelta(seconds=seconds)


def _view(sight: Sight, outlook: Outlook, row: Mapping[str, Any]) -> Forecast:
    start, finish = expected(sight, outlook, row["id"])
    waiting = [task for task in sight.snapshot.waiting if task.id == row["id"]]
    notes = notes_on(sight, outlook, waiting, [row["type"]])
    if row.get("awaits_budget") == Budget.NIGHT:
        notes.append("it has used up the night's budget and goes on when the next night begins")
    elif row.get("awaits_budget") is not None:
        notes.append("it asks for more money: nothing starts before an operator approves it")
    if finish.p50_at is None and not notes:
        notes = [f"it is not expected to start within {DAYS} days"]
    return Forecast(
        id=show_task(row["id"]),
        title=row["title"],
        type=row["type"],
        state=row["state"],
        queue_position=sight.places.get(row["id"]),
        start=start,
        finish=finish,
        observed_runs=len(sight.history.recent.get(row["type"], ())),
        nights=outlook.nights,
        made_at=sight.now,
        notes=notes,
    )


def _over(row: Mapping[str, Any], sight: Sight) -> Forecast:
    """Tell of a task that has ended: nothing is left to foretell."""
    began, ended = row["started_at"], row["finished_at"]
    return Forecast(
        id=show_task(row["id"]),
        title=row["title"],
        type=row["type"],
        state=row["state"],
        queue_position=None,
        start=_band([began] * 3),
        finish=_band([ended] * 3),
        observed_runs=len(sight.history.recent.get(row["type"], ())),
        nights=0,
        made_at=sight.now,
        notes=["it has ended"],
    )
