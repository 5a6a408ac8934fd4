"""Letting work in: tasks, their graph and their edges in one transaction, or nothing at all."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
from typing import Literal, Self

from sqlalchemy import Connection, func, select

from overnight.errors import (
    InvalidRequest,
    MonthlyLimitReached,
    QueueFull,
    TooManyPending,
    UserNotFound,
)
from overnight_server.domain.graphs import Condition, OnUnmet
from overnight_server.domain.ids import DagId, TaskId, UserId, lone_dag_id, new_dag_id, new_task_id
from overnight_server.domain.locks import LockScope, keys_of
from overnight_server.domain.plans import OnExhausted
from overnight_server.domain.priority import DEFAULT_SCORE, critical_path_weights
from overnight_server.domain.reasons import at
from overnight_server.domain.retry import RetryPolicy
from overnight_server.fault_points import fault
from overnight_server.intake import references
from overnight_server.intake.row_values import as_json, inserting, stored_policy
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.batched_statements import Call, ask, finish
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

SECONDS_PER_HOUR = 3600
# Within this many tasks of the deployment's cap, submits count one at a time and cannot overrun it;
# further off, those under way at the same moment are never that many.
NEAR_FULL = 10_000


@dataclass(frozen=True)
class NewTask:
    """One task as its producer wants it; durations are seconds, priority is 0..100."""

    title: str
    type: str
    description: str = ""
    payload: Mapping[str, object] = field(default_factory=dict)
    spec: Mapping[str, object] = field(default_factory=dict)
    project_id: str | None = None
    priority: int = DEFAULT_SCORE
    priority_boost_per_minute: float = 0.1
    timeout_seconds: int | None = None
    max_attempts: int = 3
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    required_capabilities: Sequence[str] = ()
    locks: Sequence[str] = ()
    idempotency_key: str | None = None
    deadline_at: datetime | None = None
    tags: Sequence[str] = ()
    created_by: str = "human:local"
    source: str = "api"
    max_cost_usd: float | None = None
    # What a run is thought to cost, for the gate; left out, as much as it may.
    estimated_cost_usd: float | None = None
    # What its graph calls it, if anything.
    name: str | None = None
    # What it reads: outputs of tasks, and artifacts. Those of its own graph it also waits for.
    context_refs: Sequence[str] = ()
    role: Literal["orchestrator"] | None = None


@dataclass(frozen=True)
class Edge:
    """`child` waits for `parent`; both are positions in the submitted sequence.

    `condition` says how the parent must end, `on_unmet` what becomes of the child if it ended
    otherwise. Both also take their plain words.
    """

    parent: int
    child: int
    condition: Condition | str = Condition.SUCCESS
    on_unmet: OnUnmet | str = OnUnmet.CANCEL


@dataclass(frozen=True)
class NewGraph:
    """What one request brings."""

    tasks: Sequence[NewTask]
    edges: Sequence[Edge] = ()
    title: str | None = None
    budget_usd: float | None = None
    key: str | None = None

    @property
    def is_one(self) -> bool:
        """Whether its tasks belong together; else each is a graph of its own."""
        return bool(self.edges) or self.title is not None or self.budget_usd is not None

    @property
    def is_plain(self) -> bool:
        """Whether caps and earlier keys are all there is to judge."""
        if self.is_one or not self.tasks or len(set(self.keys)) < len(self.keys):
            return False
        return not any(task.deadline_at or task.context_refs for task in self.tasks)

    @property
    def keys(self) -> list[str]:
        """The idempotency keys of its tasks."""
        return [task.idempotency_key for task in self.tasks if task.idempotency_key is not None]

    @property
    def size(self) -> int:
        """How many tasks its largest graph has."""
        return len(self.tasks) if self.is_one else 1

    def __post_init__(self) -> None:
        """Let every task wait for those of the same request whose outputs it reads."""
        known = {(edge.parent, edge.child) for edge in self.edges}
        read = references.within([(task.name, task.context_refs) for task in self.tasks])
        more = [Edge(*pair) for pair in read if pair not in known]
        if more:
            object.__setattr__(self, "edges", [*self.edges, *more])


@dataclass(frozen=True)
class Submitted:
    """Where a task went in; `created` False means an earlier request had made it already.

    `depth` is how much work then waited in the whole deployment, for the log.
    """

    task_id: TaskId
    dag_id: DagId
    created: bool
    depth: int | None = None


@dataclass(frozen=True)
class SubmittedDag:
    """A graph that went in whole, and its tasks in the order given.

    `created` False means an earlier request had made it already; its tasks can be read then.
    """

    dag_id: DagId
    tasks: Sequence[TaskId]
    created: bool
    depth: int | None = None


@dataclass(frozen=True)
class Caps:
    """How much waiting work is allowed, and what a task that declares no locks takes."""

    max_pending_per_user: int = 50
    queue_max_size: int = 1_000_000
    max_tasks_per_dag: int = 1_000
    lock_scope: LockScope = "project"

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Take the caps from the settings."""
        enabled = settings.per_user_serialization_enabled
        return cls(
            max_pending_per_user=settings.max_pending_per_user,
            queue_max_size=settings.queue_max_size,
            max_tasks_per_dag=settings.max_tasks_per_dag,
            lock_scope=settings.per_user_serialization_scope if enabled else "none",
        )


def submit(db: Db, user_id: UserId, task: NewTask, caps: Caps) -> Submitted:
    """Let one task in; the same idempotency key again answers with the first task."""
    [submitted] = submit_graph(db, user_id, [task], caps)
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
    """Let a graph in, whole or not at all; without edges each task is a graph of its own.

    A budget, or a title, makes one graph of tasks without edges too.
    """
    graph = NewGraph(tasks, edges, title, budget_usd)
    check_graph(graph)
    submitted = _let_in_at_once(db, user_id, graph, caps) if graph.is_plain else None
    if submitted is None:
        submitted = db.atomically(lambda tx: insert_graph(tx, user_id, graph, caps, and_end=True))
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
    """Let one graph in, whole or not at all; the same key again answers with the first graph."""
    graph = NewGraph(tasks, edges, title, budget_usd, idempotency_key)
    check_graph(graph)

    def work(tx: Connection) -> SubmittedDag:
        # The lane's lock makes the look-up final.
        lanes.lock(tx, [user_id])
        known = dag_of(tx, user_id, idempotency_key)
        if known is not None:
            return SubmittedDag(known, (), created=False)
        made = insert_graph(tx, user_id, graph, caps, and_end=True)
        ids = [one.task_id for one in made]
        return SubmittedDag(made[0].dag_id, ids, created=True, depth=made[0].depth)

    submitted = db.atomically(work)
    fault("intake.after_commit")
    return submitted


def check(
    tx: Connection, user_id: UserId, tasks: Sequence[NewTask], caps: Caps, edges: Sequence[Edge]
) -> None:
    """Refuse what a submit of these tasks would refuse now, and let nothing in."""
    graph = NewGraph(tasks, edges)
    check_graph(graph)
    _check_deadlines(tx, tasks)
    check_caps(tx, user_id, len(tasks), caps, size=graph.size)


def check_graph(graph: NewGraph) -> None:
    """Refuse a graph that could never end."""
    if not graph.edges:
        return
    count = len(graph.tasks)
    order: TopologicalSorter[int] = TopologicalSorter()
    for edge in graph.edges:
        _check_edge(edge, count)
        order.add(edge.child, edge.parent)
    pairs = Counter((edge.parent, edge.child) for edge in graph.edges)
    for (parent, child), times in pairs.items():
        if times > 1:
            raise InvalidRequest(
                "edges", f"{times} edges lead from {parent} to {child}", legal="one for each pair"
            )
    try:
        order.prepare()
    except CycleError as error:
        ring = " → ".join(graph.tasks[position].title for position in error.args[1])
        raise InvalidRequest(
            "edges", f"Would create circular dependency: {ring}", legal="edges without a circle"
        ) from error


def _check_edge(edge: Edge, count: int) -> None:
    if not (0 <= edge.parent < count and 0 <= edge.child < count):
        raise InvalidRequest("edges", f"{edge} names no task", legal=f"0 to {count - 1}")
    for field_name, word, known in (
        ("condition", edge.condition, Condition),
        ("on_unmet", edge.on_unmet, OnUnmet),
    ):
        if word not in set(known):
            legal = ", ".join(known)
            raise InvalidRequest(f"edges.{field_name}", f"{word!r} is no such word", legal=legal)


def _let_in_at_once(db: Db, user_id: UserId, graph: NewGraph, caps: Caps) -> list[Submitted] | None:
    """Let tasks in that plainly fit, in one trip; None if that takes a closer look."""
    made = [
        Submitted(one, lone_dag_id(one), created=True)
        for one in (new_task_id() for _ in graph.tasks)
    ]
    rows = [
        row_of(task, one, caps, unmet=0, weight=0.0) | {"context_refs": None}
        for task, one in zip(graph.tasks, made, strict=True)
    ]
    wanted = {
        **inserting(user_id, rows),
        "count": len(rows),
        "max_pending": caps.max_pending_per_user,
        "queue_max_size": caps.queue_max_size,
        "near_full": NEAR_FULL,
        "keys": graph.keys,
    }
    fault("intake.before_commit")
    answers = db.at_once(lanes.locking([user_id]), Call("insert_if_fitting", wanted))
    if not answers:
        return None
    depth = answers[0].depth + len(rows)
    return [replace(one, depth=depth) for one in made]


def insert_graph(
    tx: Connection, user_id: UserId, graph: NewGraph, caps: Caps, *, and_end: bool = False
) -> list[Submitted]:
    """Let a graph that was checked in, in the caller's transaction; its lane is taken here.

    It may end the transaction with its last statement, which saves the caller a trip.
    """
    # Holding the lane makes the count and the idempotency look-up below final.
    lane = lanes.read(tx, user_id, hold=True, with_depth=True)
    existing = _already_submitted(tx, user_id, graph.keys)
    fresh = [task for task in graph.tasks if task.idempotency_key not in existing]
    if existing and fresh and graph.edges:
        raise InvalidRequest(
            "idempotency_key",
            "some tasks of this graph were submitted before and some were not",
            legal="the same graph again, or new keys",
        )
    _check_deadlines(tx, fresh)
    new_part = replace(graph, tasks=fresh)
    depth = judge_caps(tx, lane, len(fresh), caps, size=new_part.size) if fresh else None
    made = _insert(tx, user_id, new_part, caps, send=finish if and_end else ask)
    new = (replace(one, depth=depth) for one in made)
    return [existing.get(task.idempotency_key) or next(new) for task in graph.tasks]


def dag_of(tx: Connection, user_id: UserId, key: str | None) -> DagId | None:
    """Return the graph that was made under this key, if any; the caller holds the lane."""
    if key is None:
        return None
    wanted = {"user_id": user_id, "key": key}
    found = tx.execute(statement("find_dag_by_idempotency_key"), wanted).scalar_one_or_none()
    return None if found is None else DagId(found)


def _already_submitted(
    tx: Connection, user_id: UserId, keys: Sequence[str]
) -> dict[str | None, Submitted]:
    if not keys:
        return {}
    if len(set(keys)) < len(keys):
        raise InvalidRequest(
            "idempotency_key", "two tasks of one request share a key", legal="a key for each"
        )
    rows = ask(tx, Call("find_by_idempotency_keys", {"user_id": user_id, "keys": keys}))
    return {
        row.idempotency_key: Submitted(TaskId(row.id), DagId(row.dag_id), created=False)
        for row in rows
    }


def _check_deadlines(tx: Connection, tasks: Sequence[NewTask]) -> None:
    """Refuse what could not start in time even now."""
    first = min((task.deadline_at for task in tasks if task.deadline_at), default=None)
    if first is None:
        return
    now: datetime = tx.execute(select(func.clock())).scalar_one()
    if first <= now:
        raise InvalidRequest("deadline_at", f"{at(first)} has passed", legal=f"after {at(now)}")


def check_size(
    tx: Connection, user_id: UserId, size: int, caps: Caps, *, field_name: str = "tasks"
) -> lanes.LaneView:
    """Refuse a graph of more tasks than the user's may have; return the user's lane."""
    return judge_size(lanes.read(tx, user_id), size, caps, field_name=field_name)


def judge_size(
    lane: lanes.LaneView | None, size: int, caps: Caps, *, field_name: str = "tasks"
) -> lanes.LaneView:
    """Refuse a graph of more tasks than the lane's user may have, and a user there is not."""
    if lane is None:
        raise UserNotFound
    largest = lane.max_tasks_per_dag or caps.max_tasks_per_dag
    if size > largest:
        raise InvalidRequest(field_name, f"a graph of {size} tasks", legal=f"at most {largest}")
    return lane


def check_caps(
    tx: Connection,
    user_id: UserId,
    count: int,
    caps: Caps,
    *,
    size: int = 1,
    field_name: str = "tasks",
) -> int:
    """Refuse what exceeds a cap; return how much will wait in the whole deployment.

    `count` tasks would wait, in a graph of `size`. The caller holds the lane, or does not mind
    that the answer may be old.
    """
    seen = lanes.read(tx, user_id, with_depth=True)
    return judge_caps(tx, seen, count, caps, size=size, field_name=field_name)


def judge_caps(
    tx: Connection,
    seen: lanes.LaneView | None,
    count: int,
    caps: Caps,
    *,
    size: int = 1,
    field_name: str = "tasks",
) -> int:
    """Judge `count` more tasks by what was seen of the user's lane, as `check_caps` does."""
    lane = judge_size(seen, size, caps, field_name=field_name)
    limit = lane.max_pending if lane.max_pending is not None else caps.max_pending_per_user
    if lane.waiting + count > limit:
        raise TooManyPending(lane.waiting, limit, count)
    if (
        lane.is_exhausted
        and lane.on_exhausted == OnExhausted.REJECT
        and lane.limit_seconds is not None
    ):
        raise MonthlyLimitReached(
            float(lane.used_seconds) / SECONDS_PER_HOUR,
            lane.limit_seconds / SECONDS_PER_HOUR,
            lane.resets_at,
        )
    depth = lane.total_depth if lane.total_depth is not None else lanes.depth(tx)
    if depth + count + NEAR_FULL > caps.queue_max_size:
        depth = lanes.depth_alone(tx)
    if depth + count > caps.queue_max_size:
        raise QueueFull(depth, caps.queue_max_size)
    return depth + count


def _insert(
    tx: Connection, user_id: UserId, graph: NewGraph, caps: Caps, *, send: Callable[..., object]
) -> list[Submitted]:
    tasks, edges, title = graph.tasks, graph.edges, graph.title
    if not tasks:
        return []
    together = new_dag_id() if graph.is_one else None
    ids = [new_task_id() for _ in tasks]
    made = [Submitted(one, together or lone_dag_id(one), created=True) for one in ids]
    unmet = [0] * len(tasks)
    for edge in edges:
        unmet[edge.child] += 1
    weights = critical_path_weights(len(tasks), [(edge.parent, edge.child) for edge in edges])
    named = {task.name: one for task, one in zip(tasks, ids, strict=True) if task.name is not None}
    reads = references.resolve(tx, user_id, [task.context_refs for task in tasks], named)
    rows = [
        row_of(task, one, caps, unmet=waits, weight=weight) | {"context_refs": read.stored}
        for task, one, waits, weight, read in zip(tasks, made, unmet, weights, reads, strict=True)
    ]
    links = [
        {
            "parent_id": made[edge.parent].task_id,
            "child_id": made[edge.child].task_id,
            "dag_id": made[edge.child].dag_id,
            "condition": edge.condition,
            "on_unmet": edge.on_unmet,
        }
        for edge in edges
    ]
    if together:
        tx.execute(
            statement("insert_dag"),
            {
                "dag_id": together,
                "user_id": user_id,
                "title": title or tasks[0].title,
                "created_by": tasks[0].created_by,
                "budget_usd": graph.budget_usd,
                "forked_from": None,
                "key": graph.key,
            },
        )
    fault("intake.before_commit")
    inserts = [Call("insert_tasks", inserting(user_id, rows))]
    if links:
        inserts.append(Call("insert_edges", {"user_id": user_id, "edges": as_json(links)}))
    send(tx, *inserts)
    return made


def row_of(
    task: NewTask, one: Submitted, caps: Caps, *, unmet: int, weight: float
) -> dict[str, object]:
    """Return a new task as `insert_tasks` takes it."""
    return {
        **vars(task),
        "retry": stored_policy(task.retry),
        "id": one.task_id.hex,
        "dag_id": one.dag_id.hex,
        "unmet": unmet,
        "dependency_boost": weight,
        "locks": keys_of(task.locks, task.project_id, caps.lock_scope),
    }
