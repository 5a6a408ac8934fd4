"""Bringing tasks back that have ended, with everything behind them that ended because of them."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import InvalidRequest
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.lifecycle import Event, sources, target
from overnight_server.intake.caps import Caps, check_caps
from overnight_server.store.after_commit import wake_after_commit
from overnight_server.store.statements import statement

FRESH_ATTEMPTS = 3


def check_attempts(attempts: int) -> None:
    """Refuse a number of tries that would bring nothing back."""
    if attempts < 1:
        raise InvalidRequest("attempts", f"{attempts} more tries", legal="1 or more")


def revive(
    tx: Connection, user_id: UserId, task_id: TaskId, attempts: int, caps: Caps | None
) -> list[TaskId]:
    """Bring an ended task back with so many more tries; return it and what came back with it.

    The caller holds the owner's lane and has named who acts. What comes back waits, so the caps on
    waiting work hold as for a submit; an operator, who needs no leave, gives none. What a failure
    has set going and has run since is not called back.
    """
    in_vain = tx.execute(statement("waits_in_vain"), {"task_id": task_id}).first()
    if in_vain is not None:
        raise InvalidRequest(
            "task_id",
            f"it waits for {show_task(in_vain.id)} ({in_vain.condition}), which is {in_vain.state}",
            legal="that task first, or one whose edges can still be met",
        )
    behind = [one for one in _with_all_behind(tx, [task_id]) if one != task_id]
    if caps is not None:
        check_caps(tx, user_id, 1 + len(behind), caps, field_name="task_id")
    return _bring_back(tx, [task_id, *behind], attempts, asked=task_id)


def revive_all(
    tx: Connection, user_id: UserId, tasks: Sequence[UUID], attempts: int, caps: Caps | None
) -> list[TaskId]:
    """Bring these back, as `revive` does, but for those that wait in vain; return who came."""
    back = _with_all_behind(tx, tasks)
    if back and caps is not None:
        check_caps(tx, user_id, len(back), caps, field_name="dag_id")
    return _bring_back(tx, back, attempts)


def _with_all_behind(tx: Connection, tasks: Sequence[UUID]) -> list[UUID]:
    return list(tx.execute(statement("tasks_to_revive"), {"tasks": list(tasks)}).scalars())


def _bring_back(
    tx: Connection, tasks: Sequence[UUID], attempts: int, *, asked: TaskId | None = None
) -> list[TaskId]:
    named = {"tasks": list(tasks)}
    tx.execute(statement("reopen_edges"), named)
    tx.execute(
        statement("revive"),
        {
            **named,
            "task_id": asked,
            "budget": attempts,
            "sources": sources(Event.REVIVE),
            "target": target(Event.REVIVE),
        },
    )
    tx.execute(
        statement("make_unblocked_ready"),
        {**named, "sources": sources(Event.UNBLOCK), "target": target(Event.UNBLOCK)},
    )
    wake_after_commit(tx)
    return [TaskId(one) for one in tasks]
