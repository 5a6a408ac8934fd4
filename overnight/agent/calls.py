"""The HTTP requests of pull agents, which claim tasks and run them outside the deployment."""

from collections.abc import Mapping
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel

from overnight.client.calls import Call, model_reader, path, send, without_none
from overnight.models.agents import (
    AgentHeartbeat,
    AgentRegister,
    ArtifactCreated,
    Child,
    ClaimedTask,
    HeartbeatReply,
    Ok,
    RegisteredAgent,
    RunStarted,
)
from overnight.models.field_errors import validate
from overnight.models.tasks import Task

M = TypeVar("M", bound=BaseModel)
NO_CONTENT = 204
# A longer request would be closed by proxies that end silent connections.
MAX_CLAIM_WAIT_SECONDS = 30


def register(fields: Mapping[str, Any]) -> Call[RegisteredAgent]:
    """Return the call that registers an agent, or changes the registered agent of this name."""
    return send(
        RegisteredAgent, "POST", path("agents"), validate(AgentRegister, without_none(fields))
    )


def claim(agent_id: str, *, wait: int) -> Call[ClaimedTask | None]:
    """Return the call that claims a task and waits up to `wait` seconds; None if there is none."""
    url = path("agents", agent_id, "claim")
    return Call("POST", url, _claimed, params={"wait": wait}, hold_seconds=wait)


def send_heartbeat(agent_id: str) -> Call[AgentHeartbeat]:
    """Return the call that reports that the agent is alive, and reads whether it is draining."""
    return send(AgentHeartbeat, "POST", path("agents", agent_id, "heartbeat"))


def leave(agent_id: str) -> Call[None]:
    """Return the call that removes the agent's slots."""
    return Call("DELETE", path("agents", agent_id), lambda _response: None)


def start(task_id: str, token: str) -> Call[RunStarted]:
    """Return the call that starts the run of a claimed task."""
    return _post(RunStarted, task_id, token, "start", {})


def send_run_heartbeat(task_id: str, token: str, fields: Mapping[str, Any]) -> Call[HeartbeatReply]:
    """Return the call that reports that a run continues, and reads whether it may."""
    return _post(HeartbeatReply, task_id, token, "heartbeat", fields)


def report(task_id: str, token: str, action: str, fields: Mapping[str, Any]) -> Call[Ok]:
    """Return the call that reports the end of a run: complete, fail, release or suspend."""
    return _post(Ok, task_id, token, action, fields)


def spawn(task_id: str, token: str, fields: Mapping[str, Any]) -> Call[Task]:
    """Return the call that adds a child to the graph of a running task."""
    return _post(Task, task_id, token, "spawn", fields)


def store_artifact(task_id: str, token: str, fields: Mapping[str, Any]) -> Call[ArtifactCreated]:
    """Return the call that stores an artifact of a running task."""
    return _post(ArtifactCreated, task_id, token, "artifacts", fields)


def append_log(task_id: str, token: str, fields: Mapping[str, Any]) -> Call[Ok]:
    """Return the call that adds lines to the log of a running task."""
    return _post(Ok, task_id, token, "logs", fields)


def children(task_id: str, token: str) -> Call[list[Child]]:
    """Return the call that reads the children of a running task."""
    return Call(
        "GET",
        path("tasks", task_id, "children"),
        lambda response: [Child.model_validate(item) for item in response.json()],
        headers=_authorization(token),
    )


def _post(
    model: type[M], task_id: str, token: str, action: str, fields: Mapping[str, Any]
) -> Call[M]:
    url = path("tasks", task_id, action)
    return Call("POST", url, model_reader(model), json=dict(fields), headers=_authorization(token))


def _authorization(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _claimed(response: httpx2.Response) -> ClaimedTask | None:
    if response.status_code == NO_CONTENT:
        return None
    return ClaimedTask.model_validate(response.json())
