"""A dry run of a batch: when it would start and end if it were submitted now. Nothing is kept."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from math import inf

from overnight.errors import InvalidRequest
from overnight.models.tasks import Plan, PlannedTask
from overnight_server.domain.budgets import next_cost
from overnight_server.domain.ids import UserId, new_task_id
from overnight_server.domain.locks import keys_of
from overnight_server.domain.priority import critical_path_weights, sort_key
from overnight_server.forecast.forecast import expected, expected_last, notes_on
from overnight_server.forecast.outlook import foresee
from overnight_server.forecast.simulation import Simulation, Waiting
from overnight_server.forecast.snapshot import Sight, Workers, awaited, look
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import check_submit
from overnight_server.store.db import Db

LARGEST = 1_000


def plan(
    db: Db,
    user_id: UserId,
    tasks: Sequence[NewTask],
    caps: Caps,
    workers: Workers,
    *,
    edges: Sequence[Edge] = (),
    by_at: datetime | None = None,
) -> Plan:
    """Rehearse a batch behind everything that waits already; refuse what a submit would refuse."""
    if not 1 <= len(tasks) <= LARGEST:
        raise InvalidRequest("tasks", f"a plan of {len(tasks)} tasks", legal=f"1 to {LARGEST}")

    db.atomically(lambda tx: check_submit(tx, user_id, tasks, caps, edges))
    types = {task.type for task in tasks}
    sight = db.atomically(lambda tx: look(tx, user_id, workers, types=types), all_users=True)
    weights = critical_path_weights(len(tasks), [(edge.parent, edge.child) for edge in edges])
    drafts = [
        _draft(task, user_id, caps, sight, weight)
        for task, weight in zip(tasks, weights, strict=True)
    ]
    names = [draft.id for draft in drafts]
    deployment = replace(
        sight.snapshot,
        waiting=[*sight.snapshot.waiting, *drafts],
        edges=[
            *sight.snapshot.edges,
            *(
                (awaited(names[edge.parent], edge.condition, edge.on_unmet), names[edge.child])
                for edge in edges
            ),
        ],
    )
    outlook = foresee(Simulation(deployment), sight.history, names)
    left = None if by_at is None else (by_at - sight.now).total_seconds()
    spans = [expected(sight, outlook, name) for name in names]
    return Plan(
        tasks=len(tasks),
        by_at=by_at,
        sure=None if left is None else outlook.finished_by(left, 0.9),
        likely=None if left is None else outlook.finished_by(left, 0.5),
        finish=expected_last(sight, outlook),
        steps=[
            PlannedTask(title=task.title, type=task.type, start=start, finish=finish)
            for task, (start, finish) in zip(tasks, spans, strict=True)
        ],
        nights=outlook.nights,
        made_at=sight.now,
        notes=notes_on(sight, outlook, drafts),
    )


def _draft(
    task: NewTask, user_id: UserId, caps: Caps, sight: Sight, weight: float = 0.0
) -> Waiting:
    """Return a task as it would stand in the queue."""
    longest = sight.lane["max_task_seconds"]
    return Waiting(
        id=new_task_id(),
        user=user_id,
        type=task.type,
        sort_key=sort_key(
            task.priority,
            boost_per_minute=task.priority_boost_per_minute,
            made_at=sight.now,
            now=sight.now,
            dependency_boost=weight,
            deadline_at=task.deadline_at,
        ),
        granted=float(min(task.timeout_seconds or longest, longest)),
        locks=keys_of(task.locks, task.project_id, caps.lock_scope) or (),
        needs=frozenset(task.required_capabilities),
        ready_in=sight.lets_in,
        usd=float(next_cost(_dollars(task.estimated_cost_usd), _dollars(task.max_cost_usd))),
        start_by=_start_by(task, sight.now),
    )


def _dollars(usd: float | None) -> Decimal | None:
    return None if usd is None else Decimal(str(usd))


def _start_by(task: NewTask, now: datetime) -> float:
    return inf if task.deadline_at is None else (task.deadline_at - now).total_seconds()
