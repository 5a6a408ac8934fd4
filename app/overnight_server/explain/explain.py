"""Explain why a user's task is not running: read the facts, return the gate's reasons."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import TaskNotFound
from overnight.models.explain import Explanation, Reason
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.lifecycle import WAITING, State
from overnight_server.domain.priority import MAX_POSITION, position_of
from overnight_server.domain.windows import is_zone
from overnight_server.explain.audience import OWNER, Audience
from overnight_server.explain.facts import PauseFacts, PoolFacts, TaskFacts
from overnight_server.explain.next_pass import PassOutcome, Stage, count_slots, predict_pass
from overnight_server.explain.task_reasons import open_pools, order_reasons, task_reasons
from overnight_server.gate.claim import LANES_PER_REFRESH, ClaimSettings
from overnight_server.store import lanes
from overnight_server.store.batched_statements import StatementCall, execute_batch
from overnight_server.store.db import Db
from overnight_server.store.one_at_a_time import OneAtATime
from overnight_server.store.pauses import pauses_in_force
from overnight_server.store.windows import window_of

# Upper limits on the rows that are read.
MAX_PARENTS = 10
MAX_LOCKS = 100
MAX_POOLS = 100
MAX_HEAD_TASKS = 100
# Explanations of one user's tasks are computed one after the other.
EXPLANATIONS = OneAtATime(max_waiting=50)


def explain(
    db: Db,
    user_id: UserId,
    task_id: TaskId,
    claim_settings: ClaimSettings,
    audience: Audience = OWNER,
) -> Explanation:
    """Return every reason why a user's task is not running, as the gate would find them now.

    The reasons of the task come first, then those of its user, then those of the deployment; the
    advice in their messages is for `audience`. A billing month or night of the user that is due is
    started, which locks and writes the user's lane.
    A waiting task without reasons starts with the next pass; `explain/task_reasons.py` defines
    exactly what that means. Raises TaskNotFound if the user has no such task. Concurrent equal
    calls of a process share one computation.
    """
    compute = partial(_explain, db, user_id, task_id, claim_settings, audience)
    return EXPLANATIONS.compute(user_id, (task_id, audience), compute)


def _explain(
    db: Db, user_id: UserId, task_id: TaskId, claim_settings: ClaimSettings, audience: Audience
) -> Explanation:
    # A pass of the gate first starts months and nights that are due, and so does explain. It is
    # a transaction of its own, so that no lane is locked while the facts are read. Row-level
    # security limits it to this user's lane; the next pass does the same for all others.
    db.atomically(lambda tx: _start_due_cycles(tx, user_id))

    def work(tx: Connection) -> tuple[TaskFacts, list[Reason]]:
        facts = replace(_read_facts(tx, user_id, task_id, claim_settings), audience=audience)
        reasons = task_reasons(facts)
        if not reasons:
            reasons = order_reasons(facts, _predict(tx, user_id, task_id, facts, claim_settings))
        return facts, reasons

    facts, reasons = db.atomically(work, one_instant=True, all_users=True)
    task = facts.task
    return Explanation(
        id=show_task(task["id"]),
        state=task["state"],
        queue_position=position_of(task["ahead"], task["max_position"]),
        starts_next=State(task["state"]) in WAITING and not reasons,
        reasons=reasons,
        made_at=task["now"],
    )


def explain_many(
    db: Db,
    user_id: UserId,
    task_ids: Sequence[TaskId],
    claim_settings: ClaimSettings,
    audience: Audience = OWNER,
) -> dict[TaskId, list[Reason]]:
    """Return the reasons of those of a user's tasks that wait, for the rows of a list.

    They are those of `explain` in the same order, but without the order among tasks: no task has
    the reason `behind`. What concerns all tasks of the user is judged once, and the number of
    statements does not depend on the number of tasks. Months and nights that are due are started.
    """
    if not task_ids:
        return {}
    db.atomically(lambda tx: _start_due_cycles(tx, user_id))

    def work(tx: Connection) -> list[TaskFacts]:
        return _read_all_facts(tx, user_id, task_ids, claim_settings)

    return {
        TaskId(facts.task["id"]): task_reasons(replace(facts, audience=audience))
        for facts in db.atomically(work, one_instant=True, all_users=True)
        if State(facts.task["state"]) in WAITING
    }


def explain_next(
    tx: Connection, user_id: UserId, claim_settings: ClaimSettings, audience: Audience = OWNER
) -> list[Reason]:
    """Return what keeps the user's next task from starting, whichever task that is.

    Locks and requirements of single tasks are left out, because another task could start
    instead. So is the order among users.
    """
    params = {"user_id": user_id, "limit": MAX_HEAD_TASKS}
    [row] = _rows(tx, StatementCall("explain_next_task", params))
    subject = "the first that waits" if row["is_real"] else "even the shortest task"
    return [
        reason.model_copy(update={"message": f"{subject} {reason.message}"})
        if reason.message.startswith("needs ")
        else reason
        for reason in task_reasons(
            replace(_read_surroundings(tx, user_id, row, claim_settings), audience=audience)
        )
    ]


def _start_due_cycles(tx: Connection, user_id: UserId) -> None:
    lanes.read(tx, user_id)
    lanes.refresh_due_lanes(tx, LANES_PER_REFRESH)


def _predict(
    tx: Connection,
    user_id: UserId,
    task_id: TaskId,
    facts: TaskFacts,
    claim_settings: ClaimSettings,
) -> Sequence[PassOutcome]:
    """Return the outcome of the next pass of each pool, up to the first that takes the task."""
    outcomes: list[PassOutcome] = []
    for pool in open_pools(facts):
        outcomes.append(predict_pass(tx, pool.slots, user_id, task_id, claim_settings))
        if outcomes[-1].stage is Stage.TAKEN:
            break
    return outcomes


def _read_facts(
    tx: Connection, user_id: UserId, task_id: TaskId, claim_settings: ClaimSettings
) -> TaskFacts:
    found = _read_all_facts(tx, user_id, [task_id], claim_settings, max_position=MAX_POSITION)
    if not found:
        raise TaskNotFound
    return found[0]


def _read_all_facts(
    tx: Connection,
    user_id: UserId,
    task_ids: Sequence[TaskId],
    claim_settings: ClaimSettings,
    *,
    max_position: int = 0,
) -> list[TaskFacts]:
    """Read the facts of a user's tasks; unknown tasks are left out.

    Of a task that does not wait, only the task and its parents are read.
    """
    params = {"user_id": user_id, "tasks": list(task_ids), "max_position": max_position}
    rows = _rows(tx, StatementCall("explain_tasks", params))
    waiting = [row for row in rows if State(row["state"]) in WAITING]
    parents = _rows_of(tx, "explain_parents", [row for row in rows if row["unmet"]], MAX_PARENTS)
    locks = _rows_of(tx, "explain_locks", [row for row in waiting if row["locks"]], MAX_LOCKS)
    shared = (
        _read_surroundings(
            tx, user_id, waiting[0], claim_settings, sorted({row["type"] for row in waiting})
        )
        if waiting
        else None
    )
    found = []
    for row in rows:
        own = TaskFacts(row, parents[row["id"]])
        if shared is not None and State(row["state"]) in WAITING:
            needs = frozenset(row["required_capabilities"])
            own = replace(
                shared, task=row, parents=own.parents, locks=locks[row["id"]], needs=needs
            )
        found.append(own)
    return found


def _rows_of(
    tx: Connection, name: str, tasks: Sequence[Mapping[str, Any]], limit: int
) -> Mapping[UUID, list[dict[str, Any]]]:
    """Read rows about some tasks with one statement, at most `limit` for each of them."""
    found: dict[UUID, list[dict[str, Any]]] = defaultdict(list)
    if tasks:
        params = {"tasks": [task["id"] for task in tasks], "limit": limit}
        for row in _rows(tx, StatementCall(name, params)):
            found[row["task_id"]].append(row)
    return found


def _read_surroundings(
    tx: Connection,
    user_id: UserId,
    row: Mapping[str, Any],
    claim_settings: ClaimSettings,
    types: Sequence[str] = (),
) -> TaskFacts:
    """Read what concerns every task of a user: pauses, the window and the pools."""
    window = window_of(row)
    pool_params = {
        "user_id": user_id,
        "limit": MAX_POOLS,
        "types": list(types),
        "liveness": claim_settings.liveness.total_seconds(),
    }
    return TaskFacts(
        task=row,
        pauses=[
            PauseFacts(
                pause,
                is_own=pause.scope == "user" and pause.paused_by == f"user:{user_id}",
            )
            for pause in pauses_in_force(tx, user_id)
        ],
        pools=[
            PoolFacts(
                count_slots(
                    tx,
                    pool["name"],
                    claim_settings,
                    is_outside=pool["is_outside"],
                    types=pool["only_types"],
                    serves=pool["serves"],
                ),
                pool["paused"],
                draining=pool["draining"],
                known_types=frozenset(pool["known_types"]),
            )
            for pool in _rows(tx, StatementCall("explain_pools", pool_params))
        ],
        slots_max=claim_settings.slots_max,
        window="" if window is None else str(window),
        zone_is_known=window is None or is_zone(window.zone),
        needs=frozenset(row["required_capabilities"]),
    )


def _rows(tx: Connection, call: StatementCall) -> list[dict[str, Any]]:
    return [row._asdict() for row in execute_batch(tx, call)]
