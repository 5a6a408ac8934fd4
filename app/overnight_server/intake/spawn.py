"""Spawn: a running task adds a task to its own graph."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row

from overnight.errors import (
    NotOrchestrator,
    SpawnTooDeep,
    TooManyChildren,
    UserDisabled,
)
from overnight_server.domain.capabilities import AGENT_PREFIX
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps, check_graph_can_grow
from overnight_server.intake.insert_into_graph import (
    insert_dag_row_of_lone_task,
    insert_into_graph,
)
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.references import artifacts_in
from overnight_server.intake.submit import check_submit, report_task_added
from overnight_server.outcome.artifacts import promote_artifacts
from overnight_server.outcome.lock_claimed_task import lock_claimed_task
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

ORCHESTRATOR = "orchestrator"
# The source of every spawned task.
SOURCE = "agent"


@dataclass(frozen=True)
class SpawnCaps:
    """How far a task may grow its graph."""

    caps: Caps
    max_depth: int = 5
    max_children: int = 100

    @classmethod
    def of(cls, settings: Settings) -> "SpawnCaps":
        """Return the caps that the settings give."""
        return cls(Caps.of(settings), settings.max_spawn_depth, settings.max_children_per_task)


@dataclass(frozen=True)
class NewChild:
    """A child to spawn: its task, its key among its parent's children, and the tasks it waits for.

    With `inherits_priority` it gets its parent's priority instead of its own. `traceparent` is the
    trace context of the run that spawns it, if that is not the one of the request.
    """

    task: NewTask
    key: str
    depends_on: Sequence[TaskId] = ()
    inherits_priority: bool = True
    traceparent: str | None = None


@dataclass(frozen=True)
class SpawnResult:
    """A child; `created` False means that an earlier call under the same key created it."""

    task_id: TaskId
    created: bool


def spawn(db: Db, user_id: UserId, claim: Claim, request: NewChild, caps: SpawnCaps) -> SpawnResult:
    """Insert a child of a running task into the same graph, for the same owner.

    Only the holder of the claim can: otherwise StaleAttempt is raised and nothing is written. The
    same key again returns the first child, also from a later run of the parent.
    """
    spawned = db.atomically(lambda tx: _spawn(tx, user_id, claim, request, caps))
    fault("spawn.after_commit")
    return spawned


def _spawn(
    tx: Connection, user_id: UserId, claim: Claim, request: NewChild, caps: SpawnCaps
) -> SpawnResult:
    # The lane is locked before the task, as everywhere.
    lanes.lock(tx, [user_id])
    parent = lock_claimed_task(tx, claim)
    params = {"task_id": claim.task_id, "key": request.key}
    existing = tx.execute(statement("find_spawned"), params).one_or_none()
    if existing is not None:
        return SpawnResult(TaskId(existing.id), created=False)
    _check_agent(parent, request.task)
    _check_growth(tx, user_id, parent, caps)
    check_submit(tx, user_id, [replace(request.task, context_refs=())], caps.caps, ())
    if parent.dag_id == parent.id and not parent.has_dag_row:
        insert_dag_row_of_lone_task(tx, parent.id)
    if artifacts := artifacts_in(request.task.context_refs):
        # The child may run before its parent has ended.
        promote_artifacts(tx, claim.task_id, claim.epoch, artifacts)
    task = replace(request.task, source=SOURCE, created_by=_creator(parent))
    if request.inherits_priority:
        task = replace(task, priority=parent.priority)
    if request.traceparent is not None:
        # New tasks of the transaction get it.
        tx.execute(statement("set_traceparent"), {"traceparent": request.traceparent})
    child = insert_into_graph(
        tx,
        user_id,
        parent.dag_id,
        task,
        caps.caps,
        depends_on=request.depends_on,
        extra_columns={"parent_id": parent.id, "spawn_key": request.key},
    )
    report_task_added(tx, child, None, SOURCE)
    fault("spawn.before_commit")
    return SpawnResult(child, created=True)


def _creator(parent: Row[Any]) -> str:
    """Return who spawns: the agent that the parent names, else the handler of its type."""
    named = [name for name in parent.required_capabilities if name.startswith(AGENT_PREFIX)]
    return named[0] if named else f"{AGENT_PREFIX}{parent.type}"[:100]


def _check_agent(parent: Row[Any], task: NewTask) -> None:
    """Raise NotOrchestrator if the child is for another agent and the parent may not do that."""
    if parent.role == ORCHESTRATOR:
        return
    parent_capabilities = set(parent.required_capabilities)
    for capability in task.required_capabilities:
        if capability.startswith(AGENT_PREFIX) and capability not in parent_capabilities:
            raise NotOrchestrator(f"a task for {capability}")
    if task.role == ORCHESTRATOR:
        raise NotOrchestrator("a task with the role orchestrator")


def _check_growth(tx: Connection, user_id: UserId, parent: Row[Any], caps: SpawnCaps) -> None:
    params = {"task_id": parent.id, "dag_id": parent.dag_id, "user_id": user_id}
    counts = tx.execute(statement("spawn_counts"), params).one()
    if counts.is_disabled:
        raise UserDisabled
    if counts.depth >= caps.max_depth:
        raise SpawnTooDeep(caps.max_depth)
    if counts.children >= caps.max_children:
        raise TooManyChildren(caps.max_children)
    check_graph_can_grow(tx, user_id, counts.total, caps.caps)
