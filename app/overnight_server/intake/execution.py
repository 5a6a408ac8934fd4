"""Decide how the commands of new tasks run, by their request, agent profile and plan."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from overnight.errors import InvalidRequest
from overnight.models.tasks import TaskBody
from overnight_server.domain.capabilities import COMMAND, PYTHON
from overnight_server.domain.execution import command_options
from overnight_server.domain.ids import UserId
from overnight_server.intake.new_graph import NewTask
from overnight_server.store.executions import decide_executions

# Fields of a request that only the runner command has.
COMMAND_FIELDS = ("agent", "network", "limits", "repo")


def runner_of(body: TaskBody) -> str:
    """Return the runner that a request names; an agent profile is run by the runner command.

    Raises InvalidRequest for fields that contradict the runner.
    """
    runner = body.runner or (COMMAND if body.agent is not None else PYTHON)
    if body.repo is None and (body.ref is not None or body.parallel):
        field = "ref" if body.ref is not None else "parallel"
        raise InvalidRequest(field, "has no effect without repo", legal="a repo, or no such field")
    if runner != COMMAND:
        for name in COMMAND_FIELDS:
            if getattr(body, name) is not None:
                legal = "the runner command, or no such field"
                raise InvalidRequest(name, f"has no effect on the runner {runner}", legal=legal)
    elif body.type not in {None, COMMAND}:
        legal = f"{COMMAND}, or no type"
        raise InvalidRequest("type", "cannot be chosen for the runner command", legal=legal)
    return runner


def requested(body: TaskBody) -> dict[str, Any]:
    """Return how a request wants its command to run, as `NewTask.execution` has it."""
    network = body.network
    return {
        "agent": body.agent,
        "network": network if network is None or isinstance(network, str) else dict(network),
        "limits": None if body.limits is None else body.limits.model_dump(exclude_none=True),
        "repo": body.repo,
        "ref": body.ref,
        **command_options(body.spec),
    }


def resolve(tx: Connection, user_id: UserId, tasks: Sequence[NewTask]) -> list[NewTask]:
    """Return the tasks with their execution decided; raise InvalidRequest if one cannot be.

    Reads nothing if all tasks are for Python handlers.
    """
    asking = [(task.execution, task.spec) for task in tasks if task.execution is not None]
    if not asking:
        return list(tasks)
    decided = iter(decide_executions(tx, user_id, asking))
    return [
        task if task.execution is None else replace(task, execution=next(decided).stored())
        for task in tasks
    ]
