"""Dead-letter ready tasks of types that no worker has handled for a time that the operator sets.

Only time counts in which workers were alive and none of them handled the type: not an outage of
all workers, nor one of this sweep. With many ready tasks one pass reads a part of them, in the
order of users, and the next pass continues after it.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from overnight_server.domain.lifecycle import LifecycleEvent, State, target
from overnight_server.insight.known_types import read_accepted_types
from overnight_server.outcome.settle import dead_letter_unstarted
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.pass_limit import PassLimit
from overnight_server.store.statements import statement
from overnight_server.store.sweep_positions import set_sweep_position, sweep_position

NAME = "unhandled"
NO_HANDLER = "no_handler"
# Stands for all types: a worker accepts every type, or it is not known what workers accept.
EVERY_TYPE = "*"
PAGE = 1_000
# User, sort key and id of the task before the first one.
START = f"{UUID(int=0)} -Infinity {UUID(int=0)}"


def dead_letter_unhandled(
    db: Db, *, timeout: timedelta, liveness: timedelta, reads_all: bool = False
) -> int:
    """Continue where the last pass stopped; return how many tasks were dead-lettered.

    With `reads_all` this pass reads all ready tasks.
    """
    types = read_accepted_types(db, liveness.total_seconds())
    note = {
        "types": [EVERY_TYPE] if types.everything else sorted(types.accepted),
        "every_type": EVERY_TYPE,
        "sweep": NAME,
        "gap": timeout.total_seconds() / 2,
    }
    db.atomically(lambda tx: tx.execute(statement("note_handled_types"), note))
    if types.everything:
        return 0
    position = None if reads_all else sweep_position(db, NAME)
    total, limit = 0, PassLimit()
    while True:
        position, ended = db.atomically(
            partial(_check_page, after=position or START, timeout=timeout)
        )
        total += ended
        if position is None or (limit.is_over and not reads_all):
            break
    set_sweep_position(db, NAME, position)
    return total


def _check_page(tx: Connection, after: str, timeout: timedelta) -> tuple[str | None, int]:
    """Dead-letter what is due in one page; return the position of the next one and a count.

    The position is None after the last page.
    """
    user_id, sort_key, task_id = after.split()
    params: dict[str, object] = {"seconds": timeout.total_seconds(), "every_type": EVERY_TYPE}
    rows = tx.execute(
        statement("ready_page"),
        {**params, "user_id": user_id, "sort_key": sort_key, "task_id": task_id, "limit": PAGE},
    ).all()
    ended = _dead_letter(tx, [row for row in rows if row.is_due], params)
    if len(rows) < PAGE:
        return None, ended
    last = rows[-1]
    return f"{last.user_id} {last.sort_key!r} {last.id}", ended


def _dead_letter(tx: Connection, due: Sequence[Any], params: dict[str, object]) -> int:
    """Dead-letter those of the tasks that are still due once their lanes are locked."""
    if not due:
        return 0
    lanes.lock(tx, [row.user_id for row in due])
    moved = tx.execute(
        statement("dead_letter_unhandled"),
        {
            **params,
            "tasks": [row.id for row in due],
            "sources": [State.READY.value],
            "target": target(LifecycleEvent.DEAD_LETTER),
            "reason": NO_HANDLER,
        },
    )
    ended = moved.scalars().all()
    dead_letter_unstarted(tx, ended, NO_HANDLER)
    return len(ended)
