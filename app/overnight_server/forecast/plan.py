"""A dry run of a batch: when its tasks would start and end if it were submitted now."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from math import inf

from overnight.errors import InvalidRequest
from overnight.models.tasks import Plan, PlannedTask
from overnight_server.domain.budgets import next_cost
from overnight_server.domain.ids import UserId, new_task_id
from overnight_server.domain.lock_keys import keys_of
from overnight_server.domain.priority import critical_path_weights, sort_key
from overnight_server.forecast.distribution import Simulate, simulate_nights
from overnight_server.forecast.forecast import FORECASTS, expected, expected_last, notes_on
from overnight_server.forecast.simulation import WaitingTask
from overnight_server.forecast.snapshot import ForecastInput, awaited_task, read_forecast_input
from overnight_server.gate.claim import ClaimSettings
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import check_submit
from overnight_server.store.db import Db

MAX_TASKS = 1_000


def plan(
    db: Db,
    user_id: UserId,
    tasks: Sequence[NewTask],
    caps: Caps,
    claim_settings: ClaimSettings,
    *,
    edges: Sequence[Edge] = (),
    by_at: datetime | None = None,
    simulate: Simulate = simulate_nights,
) -> Plan:
    """Simulate a batch behind all waiting tasks; nothing is written.

    Raises what a submit of the batch would raise. With `by_at`, `sure` is how many tasks end by
    then in nine of ten simulated nights, and `likely` how many in half of them.
    """
    if not 1 <= len(tasks) <= MAX_TASKS:
        raise InvalidRequest("tasks", f"has {len(tasks)} tasks", legal=f"1 to {MAX_TASKS}")

    db.atomically(lambda tx: check_submit(tx, user_id, tasks, caps, edges))
    types = {task.type for task in tasks}
    data = db.atomically(
        lambda tx: read_forecast_input(tx, user_id, claim_settings, types=types), all_users=True
    )
    weights = critical_path_weights(len(tasks), [(edge.parent, edge.child) for edge in edges])
    drafts = [
        _draft(task, user_id, caps, data, weight)
        for task, weight in zip(tasks, weights, strict=True)
    ]
    draft_ids = [draft.id for draft in drafts]
    snapshot = replace(
        data.snapshot,
        waiting=[*data.snapshot.waiting, *drafts],
        edges=[
            *data.snapshot.edges,
            *(
                (
                    awaited_task(draft_ids[edge.parent], edge.condition, edge.on_unmet),
                    draft_ids[edge.child],
                )
                for edge in edges
            ),
        ],
    )
    compute = partial(simulate, snapshot, data.observed, draft_ids)
    # No two plans are the same, so each has a key of its own.
    distribution = FORECASTS.compute(user_id, object(), compute)
    seconds_left = None if by_at is None else (by_at - data.now).total_seconds()
    intervals = [expected(data, distribution, draft_id) for draft_id in draft_ids]
    return Plan(
        tasks=len(tasks),
        by_at=by_at,
        sure=None if seconds_left is None else distribution.finished_by(seconds_left, 0.9),
        likely=None if seconds_left is None else distribution.finished_by(seconds_left, 0.5),
        finish=expected_last(data, distribution),
        steps=[
            PlannedTask(title=task.title, type=task.type, start=start, finish=finish)
            for task, (start, finish) in zip(tasks, intervals, strict=True)
        ],
        nights=distribution.nights,
        made_at=data.now,
        notes=notes_on(data, distribution, drafts),
    )


def _draft(
    task: NewTask, user_id: UserId, caps: Caps, data: ForecastInput, weight: float = 0.0
) -> WaitingTask:
    """Return a task as it would wait in the queue."""
    longest = data.lane["max_task_seconds"]
    return WaitingTask(
        id=new_task_id(),
        user=user_id,
        type=task.type,
        sort_key=sort_key(
            task.priority,
            boost_per_minute=task.priority_boost_per_minute,
            made_at=data.now,
            now=data.now,
            dependency_boost=weight,
            deadline_at=task.deadline_at,
        ),
        granted=float(min(task.timeout_seconds or longest, longest)),
        locks=keys_of(task.locks, task.project_id, caps.lock_scope) or (),
        needs=frozenset(task.required_capabilities),
        ready_in=max(data.ready_in, _seconds_until(task.start_at, data.now, 0.0)),
        usd=float(next_cost(_dollars(task.estimated_cost_usd), _dollars(task.max_cost_usd))),
        start_by=_seconds_until(task.deadline_at, data.now, inf),
    )


def _dollars(usd: float | None) -> Decimal | None:
    return None if usd is None else Decimal(str(usd))


def _seconds_until(instant: datetime | None, now: datetime, default: float) -> float:
    return default if instant is None else (instant - now).total_seconds()
