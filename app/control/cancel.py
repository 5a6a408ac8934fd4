"""Stopping a task: at once if nobody runs it, by asking its holder if somebody does."""

from sqlalchemy import Connection

from app.domain.errors import TaskAlreadyFinished, TaskNotFound
from app.domain.ids import TaskId, UserId
from app.domain.lifecycle import Event, State, target
from app.faults import fault
from app.outcome.settle import STOPPABLE_AT_ONCE, follow_cancelled
from app.store import lanes
from app.store.db import Db
from app.store.statements import statement


def cancel(db: Db, user_id: UserId, task_id: TaskId, *, actor: str) -> State:
    """Cancel one of the user's tasks and return its state; `running` means it was asked to stop.

    Another user's task looks exactly like none. A task that has ended raises TaskAlreadyFinished.
    """

    def work(tx: Connection) -> State:
        lanes.lock(tx, [user_id])
        tx.execute(statement("act_as"), {"actor": actor})
        mine = {"user_id": user_id, "tasks": [task_id]}
        stopped = tx.execute(
            statement("cancel"),
            {
                **mine,
                "sources": STOPPABLE_AT_ONCE,
                "target": target(Event.CANCEL),
                "reason": "cancelled",
            },
        ).one_or_none()
        fault("cancel.before_commit")
        if stopped is not None:
            follow_cancelled(tx, [task_id])
            return State.CANCELLED
        if tx.execute(statement("request_cancel"), mine).one_or_none() is not None:
            return State.RUNNING
        row = tx.execute(statement("owner_of"), {"task_id": task_id}).one_or_none()
        if row is None or row.user_id != user_id:
            raise TaskNotFound
        raise TaskAlreadyFinished(row.state)

    state = db.atomically(work)
    fault("cancel.after_commit")
    return state
