"""What a person asks of a graph: stop all of it, or try it again, whole or in part."""

from dataclasses import dataclass

from sqlalchemy import Connection

from overnight.errors import (
    DagAlreadyFinished,
    DagNotFound,
    DagNotRetryable,
    NotRetryable,
    TaskNotFound,
)
from overnight_server.control.cancel import stop
from overnight_server.control.revive import FRESH_ATTEMPTS, check_attempts, revive, revive_all
from overnight_server.domain.graphs import STOPPED
from overnight_server.domain.ids import DagId, TaskId, UserId
from overnight_server.domain.lifecycle import MOVES, OPEN, Event, State
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps
from overnight_server.store import edges, lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class CancelledDag:
    """What stopping a graph came to: tasks that ended at once, and runs that were asked to."""

    stopped: int
    asked: int


def cancel_dag(db: Db, user_id: UserId, dag_id: DagId, *, actor: str) -> CancelledDag:
    """Cancel every open task of one of the user's graphs; those that run are asked to stop.

    Another user's graph looks exactly like none. One that has ended raises DagAlreadyFinished.
    """

    def work(tx: Connection) -> CancelledDag:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        members = tx.execute(
            statement("tasks_of_graph"), {"user_id": user_id, "dag_id": dag_id}
        ).all()
        if not members:
            raise DagNotFound
        still_open = [one.id for one in members if State(one.state) in OPEN]
        stopped = stop(tx, user_id, still_open, reason=STOPPED)
        if not stopped.ended and not stopped.asked:
            raise DagAlreadyFinished(_status(tx, dag_id))
        edges.resolve_dependents(tx, stopped.ended)
        fault("cancel.before_commit")
        return CancelledDag(len(stopped.ended), len(stopped.asked))

    cancelled = db.atomically(work)
    fault("cancel.after_commit")
    return cancelled


def retry(
    db: Db,
    user_id: UserId,
    task_id: TaskId,
    *,
    actor: str,
    note: str = "",
    attempts: int = FRESH_ATTEMPTS,
    caps: Caps | None = None,
) -> list[TaskId]:
    """Try a dead-lettered or cancelled task again, with all behind it that ended because of it.

    What was cancelled together with it comes back too. Returns what came back, the task first. Its
    dead letter is resolved, its graph runs again, and what completed stays as it is. Another user's
    task looks exactly like none; one that has not ended so raises NotRetryable; one that waits for
    another that ended raises InvalidRequest. What comes back counts as waiting work: beyond the
    `caps` nothing does.
    """
    check_attempts(attempts)

    def work(tx: Connection) -> list[TaskId]:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        back = bring_back(
            tx, user_id, task_id, actor=actor, note=note, attempts=attempts, caps=caps
        )
        fault("dead_letter.before_commit")
        return back

    back = db.atomically(work)
    fault("dead_letter.after_commit")
    return back


def bring_back(
    tx: Connection,
    user_id: UserId,
    task_id: TaskId,
    *,
    actor: str,
    note: str = "",
    attempts: int = FRESH_ATTEMPTS,
    caps: Caps | None = None,
) -> list[TaskId]:
    """Do what `retry` does in a transaction that holds the lane and has named who acts."""
    row = tx.execute(statement("owner_of_task"), {"task_id": task_id}).one_or_none()
    if row is None or row.user_id != user_id:
        raise TaskNotFound
    if State(row.state) not in MOVES[Event.REVIVE].sources:
        raise NotRetryable(row.state)
    closed = tx.execute(
        statement("resolve_dead_letter"),
        {"tasks": [task_id], "resolution": "retry", "actor": actor, "note": note},
    ).one_or_none()
    if closed is None and row.state == State.DEAD_LETTERED:
        raise NotRetryable("in a dead letter that was closed for good")
    return revive(tx, user_id, task_id, attempts, caps)


def retry_dag(
    db: Db,
    user_id: UserId,
    dag_id: DagId,
    *,
    actor: str,
    note: str = "",
    attempts: int = FRESH_ATTEMPTS,
    caps: Caps | None = None,
) -> list[TaskId]:
    """Try everything of a graph again that failed for good or was cancelled; return what came back.

    What completed stays as it is, and so does what waits in vain for something that stays: a
    fallback nobody needed, or what hangs on a dead letter that was closed for good. Another user's
    graph looks exactly like none; one with nothing to bring back raises DagNotRetryable, and one
    with more than the `caps` allow to wait comes back not even in part.
    """
    check_attempts(attempts)

    def work(tx: Connection) -> list[TaskId]:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        mine = {"user_id": user_id, "dag_id": dag_id}
        if tx.execute(statement("tasks_of_graph"), mine).first() is None:
            raise DagNotFound
        ended = tx.execute(statement("badly_ended"), mine).scalars().all()
        back = revive_all(tx, user_id, ended, attempts, caps)
        if not back:
            raise DagNotRetryable(_status(tx, dag_id))
        tx.execute(
            statement("resolve_dead_letter"),
            {"tasks": back, "resolution": "retry", "actor": actor, "note": note},
        )
        fault("dead_letter.before_commit")
        return back

    back = db.atomically(work)
    fault("dead_letter.after_commit")
    return back


def _status(tx: Connection, dag_id: DagId) -> str:
    return str(tx.execute(statement("status_of_graph"), {"dag_id": dag_id}).scalar_one())
