"""Bringing tasks back that have ended, with everything behind them that ended because of them."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection

from app.domain.errors import InvalidRequest
from app.domain.ids import TaskId, show_task
from app.domain.lifecycle import Event, sources, target
from app.store.statements import statement

FRESH_ATTEMPTS = 3


def check_attempts(attempts: int) -> None:
    """Refuse a number of tries that would bring nothing back."""
    if attempts < 1:
        raise InvalidRequest("attempts", f"{attempts} more tries", legal="1 or more")


def revive(tx: Connection, task_id: TaskId, attempts: int) -> list[TaskId]:
    """Bring an ended task back with so many more tries; return it and what came back with it.

    The caller holds the owner's lane and has named who acts. What a failure has set going and has
    run since is not called back.
    """
    in_vain = tx.execute(statement("waits_in_vain"), {"task_id": task_id}).first()
    if in_vain is not None:
        raise InvalidRequest(
            "task_id",
            f"it waits for {show_task(in_vain.id)} ({in_vain.condition}), which is {in_vain.state}",
            legal="that task first, or one whose edges can still be met",
        )
    behind = [one for one in _with_all_behind(tx, [task_id]) if one != task_id]
    return _bring_back(tx, [task_id, *behind], attempts, asked=task_id)


def revive_all(tx: Connection, tasks: Sequence[UUID], attempts: int) -> list[TaskId]:
    """Bring these back, as `revive` does, but for those that wait in vain; return who came."""
    return _bring_back(tx, _with_all_behind(tx, tasks), attempts)


def _with_all_behind(tx: Connection, tasks: Sequence[UUID]) -> list[UUID]:
    return list(tx.execute(statement("to_revive"), {"tasks": list(tasks)}).scalars())


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
        statement("admit_unblocked"),
        {**named, "sources": sources(Event.UNBLOCK), "target": target(Event.UNBLOCK)},
    )
    return [TaskId(one) for one in tasks]
