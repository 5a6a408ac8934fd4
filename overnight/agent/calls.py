"""The requests that agents outside the deployment make, and how their answers are read."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel

from overnight.client.task_calls import TASKS, Call, validated
from overnight.models.agents import (
    Agent,
    AgentHeartbeat,
    AgentRegister,
    ArtifactCreated,
    Child,
    ClaimedTask,
    HeartbeatReply,
    RunStarted,
)
from overnight.models.tasks import Task

M = TypeVar("M", bound=BaseModel)
AGENTS = "/api/v1/agents"
NOTHING = 204
# Longer and proxies would end what is silent.
LONGEST_WAIT_SECONDS = 30


def register(fields: Mapping[str, Any]) -> Call[Agent]:
    """Register an agent, or change it."""
    given = {name: value for name, value in fields.items() if value is not None}
    body = validated(AgentRegister, given).model_dump(mode="json", exclude_unset=True)
    return Call("POST", AGENTS, lambda answer: Agent.model_validate(answer.json()), json=body)


def claim(agent_id: str, *, wait: int) -> Call[ClaimedTask | None]:
    """Ask for work, and wait for it so many seconds."""
    path = f"{_agent(agent_id)}/claim"
    return Call("POST", path, _work, params={"wait": wait}, holds=wait)


def beat(agent_id: str) -> Call[AgentHeartbeat]:
    """Show that the agent lives, and hear whether it is to drain."""
    path = f"{_agent(agent_id)}/heartbeat"
    return Call("POST", path, lambda answer: AgentHeartbeat.model_validate(answer.json()))


def leave(agent_id: str) -> Call[None]:
    """Take the agent's slots away."""
    return Call("DELETE", _agent(agent_id), _nothing)


def start(task_id: str, token: str) -> Call[RunStarted]:
    """Begin a claimed task."""
    return _say(task_id, token, "start", {}, _model(RunStarted))


def beat_run(task_id: str, token: str, said: Mapping[str, Any]) -> Call[HeartbeatReply]:
    """Say that a run goes on, and hear whether it may."""
    return _say(
        task_id,
        token,
        "heartbeat",
        said,
        _model(HeartbeatReply),
    )


def report(task_id: str, token: str, what: str, said: Mapping[str, Any]) -> Call[None]:
    """Say how a run has ended: complete, fail, release or suspend."""
    return _say(task_id, token, what, said, _nothing)


def spawn(task_id: str, token: str, said: Mapping[str, Any]) -> Call[Task]:
    """Add a child to a run's graph."""
    return _say(task_id, token, "spawn", said, lambda answer: Task.model_validate(answer.json()))


def keep(task_id: str, token: str, said: Mapping[str, Any]) -> Call[ArtifactCreated]:
    """Keep an artifact of a run."""
    return _say(
        task_id,
        token,
        "artifacts",
        said,
        _model(ArtifactCreated),
    )


def children(task_id: str, token: str) -> Call[list[Child]]:
    """Read what a running task has spawned."""
    return Call(
        "GET",
        f"{_task(task_id)}/children",
        lambda answer: [Child.model_validate(one) for one in answer.json()],
        headers=_shown(token),
    )


def _say(task_id: str, token: str, what: str, said: Mapping[str, Any], read: Any) -> Call[Any]:  # noqa: ANN401 - as the caller reads it
    path = f"{_task(task_id)}/{what}"
    return Call("POST", path, read, json=dict(said), headers=_shown(token))


def _shown(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _agent(agent_id: str) -> str:
    return f"{AGENTS}/{quote(agent_id, safe='')}"


def _task(task_id: str) -> str:
    return f"{TASKS}/{quote(task_id, safe='')}"


def _work(answer: httpx2.Response) -> ClaimedTask | None:
    return None if answer.status_code == NOTHING else ClaimedTask.model_validate(answer.json())


def _nothing(_: httpx2.Response) -> None:
    return None


def _model(model: type[M]) -> Callable[[httpx2.Response], M]:
    return lambda response: model.model_validate(response.json())
