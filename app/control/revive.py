"""Bringing a task back that has ended, with everything behind it that ended because of it."""

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

    The caller holds the owner's lane and has named who acts. Edges that were met stay met: what a
    failure has set going is not called back.
    """
    named = {"task_id": task_id}
    in_vain = tx.execute(statement("waits_in_vain"), named).first()
    if in_vain is not None:
        raise InvalidRequest(
            "task_id",
            f"it waits for {show_task(in_vain.id)} ({in_vain.condition}), which is {in_vain.state}",
            legal="that task first, or one whose edges can still be met",
        )
    behind = tx.execute(statement("doomed_dependents"), named).scalars().all()
    tasks: list[UUID] = [task_id, *behind]
    tx.execute(
        statement("revive"),
        {
            "task_id": task_id,
            "tasks": tasks,
            "budget": attempts,
            "sources": sources(Event.REVIVE),
            "target": target(Event.REVIVE),
        },
    )
    tx.execute(
        statement("admit_unblocked"),
        {"tasks": tasks, "sources": sources(Event.UNBLOCK), "target": target(Event.UNBLOCK)},
    )
    return [TaskId(one) for one in tasks]
