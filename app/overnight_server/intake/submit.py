"""The submit transaction: tasks, their graph and their edges are inserted together, or not at all.

`submit`, `submit_graph` and `submit_dag` each run one transaction, then log what was added and wake
the dispatchers. `insert_graph` does the same in a transaction of its caller.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, func, select

from overnight.errors import InvalidRequest, Refused
from overnight_server.domain.ids import (
    DagId,
    TaskId,
    UserId,
    lone_dag_id,
    new_dag_id,
    new_task_id,
    show_dag,
    show_task,
)
from overnight_server.domain.priority import critical_path_weights
from overnight_server.domain.reasons import format_instant
from overnight_server.fault_points import fault
from overnight_server.intake import execution, references
from overnight_server.intake.caps import NEAR_FULL, Caps, check_caps, check_caps_of_lane
from overnight_server.intake.new_graph import Edge, NewGraph, NewTask, check_graph
from overnight_server.intake.task_rows import as_json, insert_params, task_row
from overnight_server.store import lanes
from overnight_server.store.after_commit import log_after_commit, wake_after_commit
from overnight_server.store.batched_statements import (
    ResultRow,
    StatementCall,
    execute_and_commit,
    execute_batch,
)
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, emit

#: Returns the statement that selects one task of a user, with the column `depth`.
ReadTask = Callable[[UserId, TaskId], StatementCall]
# Postgres limits the time of each statement, so a large graph is inserted by several.
INSERT_ROWS = 5_000


@dataclass(frozen=True)
class Submitted:
    """A submitted task; `created` False means that an earlier request under its key created it.

    `depth` is how many tasks then waited in the whole deployment; None for an earlier request.
    `row` is what the caller asked to be read with the insert; None if that took a trip of its own.
    """

    task_id: TaskId
    dag_id: DagId
    created: bool
    depth: int | None = None
    row: ResultRow | None = None


@dataclass(frozen=True)
class SubmittedDag:
    """A submitted graph and its tasks in their order.

    `created` False means that an earlier request under its key created it; `tasks` is then empty.
    """

    dag_id: DagId
    tasks: Sequence[TaskId]
    created: bool
    depth: int | None = None


def submit(
    db: Db, user_id: UserId, task: NewTask, caps: Caps, *, read: ReadTask | None = None
) -> Submitted:
    """Submit one task; the same idempotency key again returns the first task.

    If the task is inserted in one round trip, `read` names a statement that selects it in the same
    trip; its row is in the result.
    """
    [submitted] = _submit(db, user_id, NewGraph([task]), caps, read)
    return submitted


def submit_graph(
    db: Db,
    user_id: UserId,
    tasks: Sequence[NewTask],
    caps: Caps,
    *,
    edges: Sequence[Edge] = (),
    title: str | None = None,
    budget_usd: float | None = None,
) -> list[Submitted]:
    """Submit tasks, all or none; without edges, title and budget each is a graph of its own."""
    return _submit(db, user_id, NewGraph(tasks, edges, title, budget_usd), caps)


def _submit(
    db: Db, user_id: UserId, graph: NewGraph, caps: Caps, read: ReadTask | None = None
) -> list[Submitted]:
    with logging_refusals():
        check_graph(graph)
        submitted = _submit_in_one_trip(db, user_id, graph, caps, read) if graph.is_plain else None
        if submitted is None:
            submitted = db.atomically(
                lambda tx: insert_graph(tx, user_id, graph, caps, and_commit=True)
            )
    fault("intake.after_commit")
    return submitted


def submit_dag(
    db: Db,
    user_id: UserId,
    tasks: Sequence[NewTask],
    caps: Caps,
    *,
    title: str,
    edges: Sequence[Edge] = (),
    budget_usd: float | None = None,
    idempotency_key: str | None = None,
) -> SubmittedDag:
    """Submit one graph, whole or not at all; the same key again returns the first graph."""
    graph = NewGraph(tasks, edges, title, budget_usd, idempotency_key)

    def work(tx: Connection) -> SubmittedDag:
        # While the lane is held, nobody else can create a graph under the same key.
        lanes.lock(tx, [user_id])
        existing = find_dag_by_key(tx, user_id, idempotency_key)
        if existing is not None:
            return SubmittedDag(existing, (), created=False)
        added = insert_graph(tx, user_id, graph, caps, and_commit=True)
        return SubmittedDag(
            added[0].dag_id, [task.task_id for task in added], created=True, depth=added[0].depth
        )

    with logging_refusals():
        check_graph(graph)
        submitted = db.atomically(work)
    fault("intake.after_commit")
    return submitted


def check_submit(
    tx: Connection, user_id: UserId, tasks: Sequence[NewTask], caps: Caps, edges: Sequence[Edge]
) -> None:
    """Raise what a submit of these tasks would raise now; insert nothing."""
    graph = NewGraph(tasks, edges)
    check_graph(graph)
    _check_deadlines(tx, tasks)
    check_caps(tx, user_id, len(tasks), caps, size=graph.size)


@contextmanager
def logging_refusals() -> Iterator[None]:
    """Log a submit that is refused inside this context; the refusal is raised further."""
    try:
        yield
    except Refused as refusal:
        depth = refusal.details.get("depth", refusal.details.get("pending"))
        emit(LogEvent.SUBMIT_REJECTED, reason=refusal.code.lower(), depth=depth)
        raise


def insert_graph(
    tx: Connection, user_id: UserId, graph: NewGraph, caps: Caps, *, and_commit: bool = False
) -> list[Submitted]:
    """Insert a checked graph in the caller's transaction, which locks the user's lane here.

    Tasks whose idempotency key exists already are not inserted again. With `and_commit` the last
    statement also commits the transaction, which saves a round trip.
    """
    # While the lane is held, the count of waiting tasks and the look-up of keys stay true.
    lane = lanes.read(tx, user_id, hold=True, with_depth=True)
    existing = _find_by_keys(tx, user_id, graph.keys)
    new_tasks = [task for task in graph.tasks if task.idempotency_key not in existing]
    if existing and new_tasks and graph.edges:
        raise InvalidRequest(
            "idempotency_key",
            "some tasks of this graph were submitted before and some were not",
            legal="the same graph again, or new keys",
        )
    _check_deadlines(tx, new_tasks)
    new_graph = replace(graph, tasks=new_tasks)
    depth = None
    if new_tasks:
        depth = check_caps_of_lane(tx, lane, len(new_tasks), caps, size=new_graph.size)
    send = execute_and_commit if and_commit else execute_batch
    inserted = [
        replace(task, depth=depth) for task in _insert(tx, user_id, new_graph, caps, send=send)
    ]
    _report_added(tx, new_graph, inserted)
    added = iter(inserted)
    return [existing.get(task.idempotency_key) or next(added) for task in graph.tasks]


def find_dag_by_key(tx: Connection, user_id: UserId, key: str | None) -> DagId | None:
    """Return the graph that was created under this key, if any; the caller holds the lane."""
    if key is None:
        return None
    params = {"user_id": user_id, "key": key}
    dag_id = tx.execute(statement("find_dag_by_idempotency_key"), params).scalar_one_or_none()
    return None if dag_id is None else DagId(dag_id)


def count_new_tasks(tx: Connection, user_id: UserId, graph: NewGraph) -> int:
    """Return how many tasks of a graph a submit would add, if no limit were reached."""
    if find_dag_by_key(tx, user_id, graph.key) is not None:
        return 0
    return len(graph.tasks) - len(_find_by_keys(tx, user_id, graph.keys))


def report_task_added(tx: Connection, task_id: TaskId, depth: int | None, source: str) -> None:
    """Log one added task and wake the dispatchers, once the transaction has committed."""
    queue_id = show_task(task_id)
    log_after_commit(tx, LogEvent.TASK_ADDED, queue_id=queue_id, depth=depth, source=source)
    wake_after_commit(tx)


def report_dag_added(
    tx: Connection, dag_id: DagId, *, tasks: int, edges: int, depth: int | None
) -> None:
    """Log one added graph and wake the dispatchers, once the transaction has committed."""
    log_after_commit(
        tx, LogEvent.DAG_ADDED, dag_id=show_dag(dag_id), tasks=tasks, edges=edges, depth=depth
    )
    wake_after_commit(tx)


def _report_added(tx: Connection, graph: NewGraph, added: Sequence[Submitted]) -> None:
    if added and graph.is_one:
        first = added[0]
        report_dag_added(
            tx, first.dag_id, tasks=len(added), edges=len(graph.edges), depth=first.depth
        )
        return
    for task, submitted in zip(graph.tasks, added, strict=True):
        report_task_added(tx, submitted.task_id, submitted.depth, task.source)


def _submit_in_one_trip(
    db: Db, user_id: UserId, graph: NewGraph, caps: Caps, read: ReadTask | None
) -> list[Submitted] | None:
    """Insert plain tasks in one round trip; None if a cap or a key needs a closer check.

    `read` is for a single task. Its statement returns no row if the task was not inserted.
    """
    ids = [new_task_id() for _ in graph.tasks]
    rows = [
        task_row(task, task_id, lone_dag_id(task_id), caps, unmet=0, weight=0.0)
        | {"context_refs": None}
        for task, task_id in zip(graph.tasks, ids, strict=True)
    ]
    params = {
        **insert_params(user_id, rows),
        "count": len(rows),
        "max_pending": caps.max_pending_per_user,
        "queue_max_size": caps.queue_max_size,
        "near_full": NEAR_FULL,
        "keys": graph.keys,
    }
    fault("intake.before_commit")
    inserted = db.run_batch(
        lanes.lock_call([user_id]),
        StatementCall("insert_tasks_if_within_limits", params),
        *([] if read is None else [read(user_id, ids[0])]),
    )
    if not inserted:
        return None
    depth = int(inserted[0].depth) + len(rows)
    row = None if read is None else inserted[0]
    for task, task_id in zip(graph.tasks, ids, strict=True):
        emit(LogEvent.TASK_ADDED, queue_id=show_task(task_id), depth=depth, source=task.source)
    db.wake()
    return [
        Submitted(task_id, lone_dag_id(task_id), created=True, depth=depth, row=row)
        for task_id in ids
    ]


def _find_by_keys(
    tx: Connection, user_id: UserId, keys: Sequence[str]
) -> dict[str | None, Submitted]:
    """Return the tasks that exist already under these idempotency keys."""
    if not keys:
        return {}
    if len(set(keys)) < len(keys):
        raise InvalidRequest(
            "idempotency_key", "two tasks of one request share a key", legal="a key for each"
        )
    rows = execute_batch(
        tx, StatementCall("find_by_idempotency_keys", {"user_id": user_id, "keys": keys})
    )
    return {
        row.idempotency_key: Submitted(TaskId(row.id), DagId(row.dag_id), created=False)
        for row in rows
    }


def _check_deadlines(tx: Connection, tasks: Sequence[NewTask]) -> None:
    """Raise InvalidRequest if a deadline has passed already, or is before the task may start."""
    for task in tasks:
        if task.start_at and task.deadline_at and task.deadline_at <= task.start_at:
            raise InvalidRequest(
                "start_at",
                f"{format_instant(task.start_at)} is not before the deadline",
                legal=f"before {format_instant(task.deadline_at)}",
            )
    earliest = min((task.deadline_at for task in tasks if task.deadline_at), default=None)
    if earliest is None:
        return
    now: datetime = tx.execute(select(func.clock())).scalar_one()
    if earliest <= now:
        raise InvalidRequest(
            "deadline_at",
            f"{format_instant(earliest)} has passed",
            legal=f"after {format_instant(now)}",
        )


def _insert(
    tx: Connection, user_id: UserId, graph: NewGraph, caps: Caps, *, send: Callable[..., object]
) -> list[Submitted]:
    """Insert the rows of a graph; `send` executes the last statements."""
    if not graph.tasks:
        return []
    tasks, edges = execution.resolve(tx, user_id, graph.tasks), graph.edges
    shared_dag_id = new_dag_id() if graph.is_one else None
    ids = [new_task_id() for _ in tasks]
    dag_ids = [shared_dag_id or lone_dag_id(task_id) for task_id in ids]
    unmet = [0] * len(tasks)
    for edge in edges:
        unmet[edge.child] += 1
    weights = critical_path_weights(len(tasks), [(edge.parent, edge.child) for edge in edges])
    ids_by_name = {
        task.name: task_id
        for task, task_id in zip(tasks, ids, strict=True)
        if task.name is not None
    }
    resolved = references.resolve(tx, user_id, [task.context_refs for task in tasks], ids_by_name)
    rows = [
        task_row(task, ids[i], dag_ids[i], caps, unmet=unmet[i], weight=weights[i])
        | {"context_refs": resolved[i].stored}
        for i, task in enumerate(tasks)
    ]
    if shared_dag_id:
        _insert_dag_row(tx, user_id, shared_dag_id, graph)
    fault("intake.before_commit")
    edge_rows = [_edge_row(edge, ids, dag_ids) for edge in edges]
    send(
        tx,
        *(StatementCall("insert_tasks", insert_params(user_id, part)) for part in _parts(rows)),
        *(
            StatementCall("insert_edges", {"user_id": user_id, "edges": as_json(part)})
            for part in _parts(edge_rows)
        ),
    )
    return [Submitted(ids[i], dag_ids[i], created=True) for i in range(len(tasks))]


def _parts(rows: Sequence[dict[str, object]]) -> Iterator[Sequence[dict[str, object]]]:
    return (rows[start : start + INSERT_ROWS] for start in range(0, len(rows), INSERT_ROWS))


def _insert_dag_row(tx: Connection, user_id: UserId, dag_id: DagId, graph: NewGraph) -> None:
    tx.execute(
        statement("insert_dag"),
        {
            "dag_id": dag_id,
            "user_id": user_id,
            "title": graph.title or graph.tasks[0].title,
            "created_by": graph.tasks[0].created_by,
            "budget_usd": graph.budget_usd,
            "forked_from": None,
            "key": graph.key,
        },
    )


def _edge_row(edge: Edge, ids: Sequence[TaskId], dag_ids: Sequence[DagId]) -> dict[str, object]:
    return {
        "parent_id": ids[edge.parent],
        "child_id": ids[edge.child],
        "dag_id": dag_ids[edge.child],
        "condition": edge.condition,
        "on_unmet": edge.on_unmet,
    }
