"""New tasks and edges as the insert statements take them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from functools import lru_cache
from uuid import UUID

from overnight_server.domain.ids import DagId, TaskId
from overnight_server.domain.lock_keys import keys_of
from overnight_server.domain.retry import RetryRules
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewTask

OMITTED_IF_DEFAULT = ("escalate_after", "escalate", "poison_attempts", "poison_distinct_agents")


def task_row(
    task: NewTask, task_id: TaskId, dag_id: DagId, caps: Caps, *, unmet: int, weight: float
) -> dict[str, object]:
    """Return a new task as a row of `insert_tasks`; `unmet` counts the parents it waits for."""
    return {
        **vars(task),
        "retry": stored_policy(task.retry),
        "id": task_id.hex,
        "dag_id": dag_id.hex,
        "unmet": unmet,
        "dependency_boost": weight,
        "locks": keys_of(task.locks, task.project_id, caps.lock_scope),
    }


@lru_cache
def stored_policy(policy: RetryRules) -> dict[str, object]:
    """Return a retry policy as it is stored; equal policies return the same object.

    Fields that few tasks change are left out where they have their default, because every version
    of the task's row carries the policy.
    """
    defaults = asdict(RetryRules())
    return {
        name: value
        for name, value in asdict(policy).items()
        if name not in OMITTED_IF_DEFAULT or value != defaults[name]
    }


def insert_params(user_id: UUID, rows: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """Return the parameters of `insert_tasks`.

    A retry policy that is the same object in several rows is sent once.
    """
    policies: list[object] = []
    positions: dict[int, int] = {}
    tasks = []
    for row in rows:
        fields = {name: value for name, value in row.items() if value is not None}
        policy = fields.pop("retry")
        fields["policy"] = positions.setdefault(id(policy), len(policies))
        if fields["policy"] == len(policies):
            policies.append(policy)
        tasks.append(fields)
    return {"user_id": user_id, "tasks": as_json(tasks), "policies": as_json(policies)}


def as_json(value: object) -> str:
    """Return JSON for a statement; ids and instants become text."""
    return json.dumps(value, default=_as_text)


def _as_text(value: object) -> str:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be stored")
