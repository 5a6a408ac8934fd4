"""Graphs that grow: tasks that running tasks spawn, and edges between tasks that exist.

Both hold the owner's lane and nothing else. Every task of a graph has the same owner, and whoever
completes, cancels or adds anything holds that lane first: so nothing can end, and no other edge
can come in, between the look and the write. A lock on the graph alone would keep two edges apart,
but not an edge and the completion of its parent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Connection, Row

from overnight.errors import (
    DagTooLarge,
    InvalidRequest,
    NotOrchestrator,
    SpawnTooDeep,
    TaskNotFound,
    TooManyChildren,
    UserDisabled,
)
from overnight_server.domain.capabilities import AGENT_PREFIX
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import DagId, TaskId, UserId, new_task_id, show_task
from overnight_server.domain.lifecycle import State
from overnight_server.domain.paths import way
from overnight_server.fault_points import fault
from overnight_server.intake import references
from overnight_server.intake.row_values import as_json, inserting
from overnight_server.intake.submit import Caps, NewTask, Submitted, check, row_of
from overnight_server.outcome.claim_guard import hold
from overnight_server.settings import Settings
from overnight_server.store import graphs, lanes
from overnight_server.store.db import Db
from overnight_server.store.graphs import Link
from overnight_server.store.statements import statement

ORCHESTRATOR = "orchestrator"
# What joins a graph behind the back of its owner says so.
SOURCE = "agent"


@dataclass(frozen=True)
class SpawnCaps:
    """How far a task may grow its graph."""

    caps: Caps
    max_depth: int = 5
    max_children: int = 100

    @classmethod
    def of(cls, settings: Settings) -> "SpawnCaps":
        """Take the caps from the settings."""
        return cls(Caps.of(settings), settings.max_spawn_depth, settings.max_children_per_task)


@dataclass(frozen=True)
class Seed:
    """A task to be spawned: its key among its parent's children, and whom it waits for.

    `inherits_priority` gives it its parent's; its own is then not looked at.
    """

    task: NewTask
    key: str
    depends_on: Sequence[TaskId] = ()
    inherits_priority: bool = True


@dataclass(frozen=True)
class Spawned:
    """A child; `created` False means that an earlier call under the same key had made it."""

    task_id: TaskId
    created: bool


def spawn(db: Db, user_id: UserId, claim: Claim, seed: Seed, caps: SpawnCaps) -> Spawned:
    """Let a task in that a running one asks for, into the same graph and for the same owner.

    Only the holder of the claim can: StaleAttempt says that it is lost, and nothing is written.
    The same key again answers with the first child, in whatever run of the parent it was made.
    """
    spawned = db.atomically(lambda tx: _spawn(tx, user_id, claim, seed, caps))
    fault("spawn.after_commit")
    return spawned


@dataclass(frozen=True)
class NewEdge:
    """An edge between two tasks of one graph: `child` shall wait for `parent`."""

    parent: TaskId
    child: TaskId
    condition: Literal["success", "finished", "failure"] = "success"


def add_edges(db: Db, user_id: UserId, edges: Sequence[NewEdge], *, actor: str) -> None:
    """Let tasks of a graph wait for others of it, all or none of the edges.

    Only a task that waits for others already can be made to wait for one more: what is ready may
    be claimed at any moment. A parent that has ended as wanted counts at once.
    """

    def work(tx: Connection) -> None:
        lanes.lock(tx, [user_id])
        tx.execute(statement("act_as"), {"actor": actor})
        _add_edges(tx, user_id, edges)
        fault("edges.before_commit")

    db.atomically(work)
    fault("edges.after_commit")


def _spawn(tx: Connection, user_id: UserId, claim: Claim, seed: Seed, caps: SpawnCaps) -> Spawned:
    lanes.lock(tx, [user_id])
    parent = hold(tx, claim)
    named = {"task_id": claim.task_id, "key": seed.key}
    known = tx.execute(statement("find_spawned"), named).one_or_none()
    if known is not None:
        return Spawned(TaskId(known.id), created=False)
    _check_agent(parent, seed.task)
    _check_growth(tx, user_id, parent, caps)
    check(tx, user_id, [replace(seed.task, context_refs=())], caps.caps, ())
    if parent.dag_id == parent.id and not parent.grown:
        found_graph(tx, parent.id)
    task = replace(seed.task, source=SOURCE, created_by=f"agent:{parent.type}"[:100])
    if seed.inherits_priority:
        task = replace(task, priority=parent.priority)
    born = {"parent_id": parent.id, "spawn_key": seed.key}
    child = insert_into(
        tx, user_id, parent.dag_id, task, caps.caps, depends_on=seed.depends_on, born=born
    )
    fault("spawn.before_commit")
    return Spawned(child, created=True)


def _check_agent(parent: Row[Any], task: NewTask) -> None:
    """Refuse work for an agent that is not the parent's own, unless it orchestrates."""
    if parent.role == ORCHESTRATOR:
        return
    own = set(parent.required_capabilities)
    for one in task.required_capabilities:
        if one.startswith(AGENT_PREFIX) and one not in own:
            raise NotOrchestrator(f"a task for {one}")
    if task.role == ORCHESTRATOR:
        raise NotOrchestrator("a task with the role orchestrator")


def _check_growth(tx: Connection, user_id: UserId, parent: Row[Any], caps: SpawnCaps) -> None:
    named = {"task_id": parent.id, "dag_id": parent.dag_id, "user_id": user_id}
    room = tx.execute(statement("room_to_spawn"), named).one()
    if room.is_disabled:
        raise UserDisabled
    if room.depth >= caps.max_depth:
        raise SpawnTooDeep(caps.max_depth)
    if room.children >= caps.max_children:
        raise TooManyChildren(caps.max_children)
    lane = lanes.read(tx, user_id)
    largest = (lane.max_tasks_per_dag if lane else None) or caps.caps.max_tasks_per_dag
    if room.total >= largest:
        raise DagTooLarge(room.total, largest)


def found_graph(tx: Connection, task_id: UUID) -> None:
    """Give a lone task's graph its row, now that another task joins; its lane is held."""
    named = {"task_id": task_id}
    tx.execute(statement("mark_grown"), named).one()
    tx.execute(statement("insert_grown_dag"), named)


def insert_into(
    tx: Connection,
    user_id: UserId,
    dag_id: DagId,
    task: NewTask,
    caps: Caps,
    *,
    depends_on: Sequence[TaskId] = (),
    born: Mapping[str, object] | None = None,
) -> TaskId:
    """Let one more task into a graph that has a row, behind others of it; its lane is held.

    `born` is what a spawned task has besides: its parent, and its key among the children.
    """
    task_id = new_task_id()
    [read] = references.resolve(tx, user_id, [task.context_refs], {}, dag_id=dag_id)
    before = list(dict.fromkeys([*depends_on, *read.after]))
    unmet = _unmet(tx, user_id, dag_id, before)
    made = Submitted(task_id, dag_id, created=True)
    row = row_of(task, made, caps, unmet=len(unmet), weight=0.0) | {
        "context_refs": read.stored,
        **(born or {}),
    }
    tx.execute(statement("insert_tasks"), inserting(user_id, [row]))
    if before:
        # Counted in the row already, so that it never was ready.
        links = [
            {
                "parent_id": one,
                "child_id": task_id,
                "dag_id": dag_id,
                "condition": "success",
                "on_unmet": "cancel",
                "is_met": one not in unmet,
            }
            for one in before
        ]
        tx.execute(statement("insert_edges"), {"user_id": user_id, "edges": as_json(links)})
        graphs.weigh(tx, user_id, dag_id)
    return task_id


def _unmet(tx: Connection, user_id: UserId, dag_id: DagId, before: Sequence[TaskId]) -> set[TaskId]:
    """Return which of these tasks have not completed; refuse those that never will."""
    if not before:
        return set()
    ends = _ends(tx, user_id, before)
    for one in before:
        if ends[one].dag_id != dag_id:
            raise _outside("depends_on", one)
        if ends[one].state in {State.DEAD_LETTERED, State.CANCELLED}:
            raise InvalidRequest(
                "depends_on",
                f"{show_task(one)} has ended as {ends[one].state}",
                legal="a task that has completed or still can",
            )
    return {one for one in before if ends[one].state != State.COMPLETED}


def _add_edges(tx: Connection, user_id: UserId, edges: Sequence[NewEdge]) -> None:
    ends = _ends(tx, user_id, [one for edge in edges for one in (edge.parent, edge.child)])
    dags = {row.dag_id for row in ends.values()}
    if len(dags) > 1:
        raise _outside("edges", edges[0].parent)
    for dag_id in dags:
        known = graphs.edges_of(tx, user_id, dag_id)
        for edge in edges:
            if (edge.parent, edge.child) in known:
                continue
            _check_edge(ends, edge)
            ring = way(known, edge.child, edge.parent)
            if ring is not None:
                raise _circle(tx, user_id, [edge.parent, *ring])
            known.append((edge.parent, edge.child))
            graphs.add_edges(tx, [Link(edge.parent, edge.child, edge.condition)])
        graphs.weigh(tx, user_id, dag_id)


def _check_edge(ends: dict[UUID, Row[Any]], edge: NewEdge) -> None:
    parent, child = ends[edge.parent], ends[edge.child]
    if child.state != State.PENDING:
        raise InvalidRequest(
            "edges",
            f"{show_task(child.id)} is {child.state}, and can no longer be made to wait",
            legal="a child that is pending",
        )
    if child.awaits_budget is not None:
        raise InvalidRequest(
            "edges",
            f"{show_task(child.id)} asks for more money, and cannot be made to wait",
            legal="a child that waits for other tasks",
        )
    never = {
        "success": {State.DEAD_LETTERED, State.CANCELLED},
        "failure": {State.COMPLETED, State.CANCELLED},
        "finished": set(),
    }[edge.condition]
    if parent.state in never:
        raise InvalidRequest(
            "edges",
            f"{show_task(parent.id)} has ended as {parent.state}: its {edge.condition} never comes",
            legal="a parent that can still end so",
        )


def _circle(tx: Connection, user_id: UserId, ring: Sequence[UUID]) -> InvalidRequest:
    """Say that an edge would close a circle, and which; as at submit."""
    found = _ends(tx, user_id, ring)
    titles = " → ".join(found[one].title for one in ring)
    return InvalidRequest(
        "edges", f"Would create circular dependency: {titles}", legal="edges without a circle"
    )


def _ends(tx: Connection, user_id: UserId, tasks: Sequence[UUID]) -> dict[UUID, Row[Any]]:
    """Return the tasks an edge joins; one that is not the user's looks exactly like none."""
    wanted = {"user_id": user_id, "tasks": list(dict.fromkeys(tasks))}
    rows = tx.execute(statement("edge_ends"), wanted)
    found: dict[UUID, Row[Any]] = {row.id: row for row in rows}
    if any(one not in found for one in tasks):
        raise TaskNotFound
    return found


def _outside(field: str, task_id: TaskId) -> InvalidRequest:
    return InvalidRequest(
        field, f"{show_task(task_id)} belongs to another graph", legal="tasks of one graph"
    )
