"""Stopping tasks: at once if nobody runs them, by asking the holder if somebody does."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection

from overnight.errors import TaskAlreadyCompleted, TaskNotFound
from overnight_server.domain.graphs import STOPPED
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.lifecycle import Event, State, target
from overnight_server.fault_points import fault
from overnight_server.outcome.settle import STOPPABLE_AT_ONCE, follow_cancelled
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class Stopped:
    """Which tasks ended at once, and which of them run and were asked to stop."""

    ended: Sequence[UUID]
    asked: Sequence[UUID]


def cancel(db: Db, user_id: UserId, task_id: TaskId, *, actor: str) -> State:
    """Cancel one of the user's tasks and return its state; `running` means it was asked to stop.

    Another user's task looks exactly like none. A task that has ended raises TaskAlreadyCompleted.
    """

    def work(tx: Connection) -> State:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        stopped = stop(tx, user_id, [task_id], reason=STOPPED)
        fault("cancel.before_commit")
        if stopped.ended:
            follow_cancelled(tx, stopped.ended)
            return State.CANCELLED
        if stopped.asked:
            return State.RUNNING
        row = tx.execute(statement("owner_of_task"), {"task_id": task_id}).one_or_none()
        if row is None or row.user_id != user_id:
            raise TaskNotFound
        raise TaskAlreadyCompleted(row.state)

    state = db.atomically(work)
    fault("cancel.after_commit")
    return state


def stop(tx: Connection, user_id: UserId, tasks: Sequence[UUID], *, reason: str) -> Stopped:
    """Stop those of a user's tasks that are open; all others stay as they are.

    The caller holds the lane, has named who acts, and records what follows from those that ended.
    """
    stopped = tx.execute(
        statement("cancel"),
        {
            "user_id": user_id,
            "tasks": list(tasks),
            "sources": STOPPABLE_AT_ONCE,
            "target": target(Event.CANCEL),
            "reason": reason,
        },
    ).all()
    ended = [one.id for one in stopped]
    # One instant for all: by it a retry knows what was cancelled together.
    asked_at = max((one.at for one in stopped), default=None)
    # After the cancel: a claim that was started meanwhile is asked like any other run.
    others = set(tasks) - set(ended)
    if not others:
        return Stopped(ended, ())
    named = {"user_id": user_id, "tasks": sorted(others), "asked_at": asked_at}
    return Stopped(ended, tx.execute(statement("request_cancel"), named).scalars().all())
