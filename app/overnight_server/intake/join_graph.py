"""Join: submit a task into a graph that the user has submitted before."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection

from overnight.errors import DagNotFound
from overnight_server.domain.ids import DagId, TaskId, UserId
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps, check_graph_can_grow
from overnight_server.intake.insert_into_graph import (
    insert_dag_row_of_lone_task,
    insert_into_graph,
    read_tasks_to_connect,
)
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import (
    Submitted,
    check_submit,
    logging_refusals,
    report_task_added,
)
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement


def join_graph(
    db: Db,
    user_id: UserId,
    dag_id: DagId | None,
    task: NewTask,
    caps: Caps,
    *,
    depends_on: Sequence[TaskId] = (),
) -> Submitted:
    """Submit a task into a graph; the same idempotency key again returns the first task.

    Without a `dag_id` the graph is that of the first task in `depends_on`. The task waits for
    `depends_on` and for tasks of the graph whose output it reads. A graph that has ended runs again
    until the new task has ended. Raises DagNotFound or TaskNotFound if the user has no such graph
    or task, and InvalidRequest if a task of `depends_on` is in another graph.
    """
    with logging_refusals():
        joined = db.atomically(
            lambda tx: _join(tx, user_id, dag_id, task, caps, depends_on=depends_on)
        )
    fault("intake.after_commit")
    return joined


def _join(
    tx: Connection,
    user_id: UserId,
    dag_id: DagId | None,
    task: NewTask,
    caps: Caps,
    *,
    depends_on: Sequence[TaskId],
) -> Submitted:
    # While the lane is held, the look-ups stay true and the graph cannot end.
    lanes.lock(tx, [user_id])
    keys = {"user_id": user_id, "keys": [task.idempotency_key]}
    existing = tx.execute(statement("find_by_idempotency_keys"), keys).one_or_none()
    if existing is not None:
        return Submitted(TaskId(existing.id), DagId(existing.dag_id), created=False)
    if dag_id is None:
        first = depends_on[0]
        dag_id = DagId(read_tasks_to_connect(tx, user_id, [first])[first].dag_id)
    graph = tx.execute(
        statement("graph_to_join"), {"dag_id": dag_id, "user_id": user_id}
    ).one_or_none()
    if graph is None:
        raise DagNotFound
    check_submit(tx, user_id, [replace(task, context_refs=())], caps, ())
    check_graph_can_grow(tx, user_id, graph.total, caps)
    if graph.is_lone:
        insert_dag_row_of_lone_task(tx, graph.id)
    depth = lanes.depth(tx) + 1
    task_id = insert_into_graph(tx, user_id, dag_id, task, caps, depends_on=depends_on)
    report_task_added(tx, task_id, depth, task.source)
    fault("intake.before_commit")
    return Submitted(task_id, dag_id, created=True, depth=depth)
