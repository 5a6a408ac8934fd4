"""A task that joins a graph its user has already: one more piece of a workflow."""

from dataclasses import replace

from sqlalchemy import Connection

from overnight.errors import DagNotFound, DagTooLarge
from overnight_server.domain.ids import DagId, TaskId, UserId
from overnight_server.fault_points import fault
from overnight_server.intake.grow_graph import found_graph, insert_into
from overnight_server.intake.submit import Caps, NewTask, Submitted, check
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def join(db: Db, user_id: UserId, dag_id: DagId, task: NewTask, caps: Caps) -> Submitted:
    """Let a task into a graph; the same idempotency key again answers with the first task.

    A graph that has ended is open again with it, until the new task has ended too. What it reads of
    tasks in the graph it waits for. Another user's graph looks exactly like none.
    """
    joined = db.atomically(lambda tx: _join(tx, user_id, dag_id, task, caps))
    fault("intake.after_commit")
    return joined


def _join(tx: Connection, user_id: UserId, dag_id: DagId, task: NewTask, caps: Caps) -> Submitted:
    # The lane's lock makes the look-ups final, and keeps the graph from ending meanwhile.
    lanes.lock(tx, [user_id])
    named = {"user_id": user_id, "keys": [task.idempotency_key]}
    known = tx.execute(statement("find_by_idempotency_keys"), named).one_or_none()
    if known is not None:
        return Submitted(TaskId(known.id), DagId(known.dag_id), created=False)
    graph = tx.execute(
        statement("graph_to_join"), {"dag_id": dag_id, "user_id": user_id}
    ).one_or_none()
    if graph is None:
        raise DagNotFound
    check(tx, user_id, [replace(task, context_refs=())], caps, ())
    lane = lanes.read(tx, user_id)
    largest = (lane.max_tasks_per_dag if lane else None) or caps.max_tasks_per_dag
    if graph.total >= largest:
        raise DagTooLarge(graph.total, largest)
    if graph.is_lone:
        found_graph(tx, graph.id)
    depth = lanes.depth(tx) + 1
    task_id = insert_into(tx, user_id, dag_id, task, caps)
    fault("intake.before_commit")
    return Submitted(task_id, dag_id, created=True, depth=depth)
