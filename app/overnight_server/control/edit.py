"""Edit a waiting task, if it has not changed since its editor read it."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from sqlalchemy import Connection

from overnight.errors import InvalidRequest, NotEditable, PreconditionFailed, TaskNotFound
from overnight_server.domain.execution import command_options
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.lifecycle import WAITING, LifecycleEvent, State, target
from overnight_server.domain.validation import check_validators
from overnight_server.mask import mask_names
from overnight_server.store import lanes
from overnight_server.store.after_commit import wake_after_commit
from overnight_server.store.db import Db
from overnight_server.store.executions import decide_executions
from overnight_server.store.statements import statement

#: An edition that matches every edition of a task.
ANY = "*"


class Unset(Enum):
    """Stands for a value that the edit does not change, where None removes the value."""

    UNSET = "unset"


@dataclass(frozen=True)
class TaskEdit:
    """The new values of a task's fields; None leaves a field unchanged.

    A timeout, a deadline or a start of None removes it; `Unset.UNSET` leaves it unchanged.
    """

    title: str | None = None
    description: str | None = None
    priority: int | None = None
    tags: Collection[str] | None = None
    payload: Mapping[str, object] | None = None
    spec: Mapping[str, object] | None = None
    agent: str | None = None
    timeout_seconds: int | Unset | None = Unset.UNSET
    deadline_at: datetime | Unset | None = Unset.UNSET
    start_at: datetime | Unset | None = Unset.UNSET

    @property
    def is_empty(self) -> bool:
        """Whether no field changes."""
        return self == TaskEdit()


def edit(
    db: Db,
    user_id: UserId,
    task_id: TaskId,
    changes: TaskEdit,
    *,
    editions: Collection[str],
    actor: str,
) -> None:
    """Change one of the user's waiting tasks, if its edition is one of `editions`.

    Locks the user's lane, then the task. A start in the future makes a ready task pending; without
    one, or with one that has passed, a task that waited only for its start becomes ready. Raises
    TaskNotFound if the user has no such task, PreconditionFailed if the task has changed since,
    NotEditable if it is claimed or has ended, and InvalidRequest for the start of a task that has
    been started before.
    """

    def work(tx: Connection) -> None:
        lanes.lock(tx, [user_id])
        tx.execute(statement("set_actor"), {"actor": actor})
        edit_task(tx, user_id, task_id, changes, editions=editions)
        # The task may have become startable.
        lanes.unskip_lane(tx, user_id)
        wake_after_commit(tx)

    db.atomically(work)


def edit_task(
    tx: Connection,
    user_id: UserId,
    task_id: TaskId,
    changes: TaskEdit,
    *,
    editions: Collection[str] = (ANY,),
) -> None:
    """Do what `edit` does in a transaction that holds the lane; the caller unskips the lane."""
    params = {"user_id": user_id, "task_id": task_id}
    row = tx.execute(statement("lock_task"), params).mappings().one_or_none()
    if row is None:
        raise TaskNotFound
    if ANY not in editions and edition_of(dict(row)) not in editions:
        raise PreconditionFailed
    if State(row["state"]) not in WAITING:
        raise NotEditable(row["state"])
    if not isinstance(changes.start_at, Unset) and row["has_started"]:
        message = "the task has been started before, so its start cannot be changed"
        raise InvalidRequest("start_at", message, legal="no start_at for this task")
    apply_edit(tx, user_id, task_id, changes, WAITING)


def apply_edit(
    tx: Connection, user_id: UserId, task_id: TaskId, changes: TaskEdit, sources: Collection[State]
) -> None:
    """Write the changes to a task that is in one of the `sources` states; the lane is held."""
    timeout, deadline, start = changes.timeout_seconds, changes.deadline_at, changes.start_at
    tx.execute(
        statement("edit_task"),
        {
            "user_id": user_id,
            "task_id": task_id,
            "title": changes.title,
            "description": changes.description,
            "priority": changes.priority,
            "tags": None if changes.tags is None else list(changes.tags),
            "payload": None if changes.payload is None else json.dumps(changes.payload),
            "spec": None if changes.spec is None else json.dumps(changes.spec),
            "execution": _execution(tx, user_id, task_id, changes),
            "with_timeout": not isinstance(timeout, Unset),
            "timeout_seconds": None if isinstance(timeout, Unset) else timeout,
            "with_deadline": not isinstance(deadline, Unset),
            "deadline_at": None if isinstance(deadline, Unset) else deadline,
            "with_start": not isinstance(start, Unset),
            "start_at": None if isinstance(start, Unset) else start,
            "ready": target(LifecycleEvent.UNBLOCK),
            "sources": sorted(sources),
        },
    )


def _execution(tx: Connection, user_id: UserId, task_id: TaskId, changes: TaskEdit) -> str | None:
    """Return how the edited command runs, decided anew; None if the edit does not concern it."""
    if changes.agent is None and changes.spec is None:
        return None
    params = {"user_id": user_id, "task_id": task_id}
    row = tx.execute(statement("execution_of_task"), params).one()
    if changes.spec is not None:
        check_validators(changes.spec, row.required_capabilities)
    if row.execution is None:
        if changes.agent is None:
            return None
        legal = "no agent: create a new task with it"
        raise InvalidRequest("agent", "the task is not run by an agent profile", legal=legal)
    spec = row.spec if changes.spec is None else changes.spec
    asked = {**row.execution["asked"], **command_options(spec)}
    if changes.agent is not None:
        asked["agent"] = changes.agent
    [decided] = decide_executions(tx, user_id, [(asked, spec)])
    return json.dumps(decided.stored())


def edition_of(row: Mapping[str, Any]) -> str:
    """Return a digest that changes whenever the task's state or an editable field changes.

    Secrets in the payload count as they are shown, masked: a change of a secret alone is no change.
    """
    values = [
        row["state"],
        row["title"],
        row["description"],
        row["priority"],
        None if row["deadline_at"] is None else row["deadline_at"].isoformat(),
        list(row["tags"]),
        row["timeout_seconds"],
        mask_names(row["payload"]),
        None if row["start_at"] is None else row["start_at"].isoformat(),
        row["agent"],
    ]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:20]
