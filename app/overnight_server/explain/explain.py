"""Why one of a user's tasks is not running: the facts are read, and the gate's judgement shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, TextClause

from overnight.errors import TaskNotFound
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.lifecycle import WAITING, State
from overnight_server.domain.pauses import Scope
from overnight_server.domain.priority import MAX_POSITION
from overnight_server.domain.reasons import Reason
from overnight_server.domain.windows import is_zone
from overnight_server.explain.facts import Facts, Pause, Pool
from overnight_server.explain.next_pass import Outcome, Stage, look_ahead, offer_of
from overnight_server.explain.task_reasons import behind, held_back, open_pools
from overnight_server.gate.claim import CYCLES_PER_PASS, Terms
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.pauses import pauses_in_force
from overnight_server.store.statements import statement
from overnight_server.store.windows import window_of

# How much is read at most; nobody reads further.
PARENTS = 10
LOCKS = 100
POOLS = 100
HEAD = 100


@dataclass(frozen=True)
class ReasonView:
    """One reason: a word for programs, a sentence for people, the facts behind both."""

    code: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExplainView:
    """Why a task is not running; a waiting one without any reason starts with the next pass."""

    id: str
    state: str
    queue_position: int | None
    starts_next: bool
    reasons: list[ReasonView]
    made_at: datetime


def explain(db: Db, user_id: UserId, task_id: TaskId, terms: Terms) -> ExplainView:
    """Return every reason a user's task is not running; another user's looks exactly like none.

    The reasons are the gate's at this instant: `explain/task_reasons.py` says what it means that
    there is none.
    """
    # A pass brings lanes to the present before it looks, and so does whoever explains one. Apart,
    # so that no lane is held while the rest is read. Behind the user's wall that is the user's own;
    # the dispatchers' next pass does it for the others.
    db.atomically(lambda tx: _catch_up(tx, user_id))

    def work(tx: Connection) -> tuple[Facts, list[Reason]]:
        facts = _facts(tx, user_id, task_id, terms)
        return facts, held_back(facts) or behind(
            facts, _outcomes(tx, user_id, task_id, facts, terms)
        )

    facts, reasons = db.atomically(work, one_instant=True, all_users=True)
    task = facts.task
    return ExplainView(
        id=show_task(task["id"]),
        state=task["state"],
        queue_position=_position(task),
        starts_next=State(task["state"]) in WAITING and not reasons,
        reasons=[ReasonView(one.code.value, one.message, one.details) for one in reasons],
        made_at=task["now"],
    )


def explain_next(tx: Connection, user_id: UserId, terms: Terms) -> list[Reason]:
    """Return what keeps the user's next task, whichever that is, from starting; nothing if it may.

    Locks and what single tasks require are left out: another task might go. So are other users.
    """
    asked = {"user_id": user_id, "limit": HEAD}
    row = dict(tx.execute(statement("explain_draft"), asked).mappings().one())
    which = "the first that waits" if row["is_real"] else "even the shortest task"
    return [
        replace(reason, message=f"{which} {reason.message}")
        if reason.message.startswith("needs ")
        else reason
        for reason in held_back(_read_facts(tx, user_id, row, terms))
    ]


def _catch_up(tx: Connection, user_id: UserId) -> None:
    lanes.read(tx, user_id)
    lanes.roll_due(tx, CYCLES_PER_PASS)


def _outcomes(
    tx: Connection, user_id: UserId, task_id: TaskId, facts: Facts, terms: Terms
) -> Sequence[Outcome]:
    found: list[Outcome] = []
    for pool in open_pools(facts):
        found.append(look_ahead(tx, pool.offer, user_id, task_id, terms))
        if found[-1].stage is Stage.TAKEN:
            break
    return found


def _facts(tx: Connection, user_id: UserId, task_id: TaskId, terms: Terms) -> Facts:
    named = {"user_id": user_id, "task_id": task_id, "max_position": MAX_POSITION}
    found = tx.execute(statement("explain_task"), named).mappings().one_or_none()
    if found is None:
        raise TaskNotFound
    row = dict(found)
    parents = (
        _rows(tx, statement("explain_parents"), task_id=task_id, limit=PARENTS)
        if row["unmet"]
        else ()
    )
    if State(row["state"]) not in WAITING:
        return Facts(row, parents)
    return replace(
        _read_facts(tx, user_id, row, terms),
        parents=parents,
        locks=(
            _rows(tx, statement("explain_locks"), task_id=task_id, limit=LOCKS)
            if row["locks"]
            else ()
        ),
    )


def _read_facts(tx: Connection, user_id: UserId, row: Mapping[str, Any], terms: Terms) -> Facts:
    """Read what a user's tasks have around them: pauses, the window, the pools."""
    window = window_of(row)
    return Facts(
        task=row,
        pauses=[
            Pause(
                Scope(one.scope),
                one.target,
                one.note,
                one.paused_at,
                is_own=one.scope == Scope.USER and one.paused_by == f"user:{user_id}",
            )
            for one in pauses_in_force(tx, user_id)
        ],
        pools=[
            Pool(
                offer_of(
                    tx,
                    pool["name"],
                    terms,
                    is_outside=pool["is_outside"],
                    types=pool["only_types"],
                    serves=pool["serves"],
                ),
                pool["paused"],
                draining=pool["draining"],
                knowing=pool["knowing"],
            )
            for pool in _rows(
                tx,
                statement("explain_pools"),
                user_id=user_id,
                limit=POOLS,
                type=row["type"],
                liveness=terms.liveness.total_seconds(),
            )
        ],
        slots_max=terms.slots_max,
        window="" if window is None else str(window),
        zone_is_known=window is None or is_zone(window.zone),
        needs=frozenset(row["required_capabilities"]),
    )


def _rows(tx: Connection, question: TextClause, **values: object) -> list[dict[str, Any]]:
    return [dict(row) for row in tx.execute(question, values).mappings()]


def _position(task: Mapping[str, Any]) -> int | None:
    ahead: int | None = task["ahead"]
    return None if ahead is None or ahead >= task["max_position"] else ahead + 1
