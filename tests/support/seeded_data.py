"""A served deployment with one of everything in it, and the names of all of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from overnight_server.control.keys import issue, key_id_of
from tests.support.live_api import LiveApi

API = "/api/v1"
TASKS = f"{API}/tasks"
WORKER = "test-host:1:boot"
GRAPH = {"title": "a graph", "tasks": [{"name": "a"}, {"name": "b", "after": ["a"]}]}
# What a run may say, each about a run of its own: some of it ends the run.
SAYINGS = (
    *("start", "heartbeat", "extend", "complete", "fail", "release", "suspend", "spawn"),
    *("children", "artifacts"),
)


@dataclass
class SeededUser:
    """What a path of the API may name here, by the parameter's name, and the runs that go on."""

    named: dict[str, list[str]]
    #: Things of another user's, for the routes of admins.
    foreign: dict[str, list[str]]
    #: The task and the token of the run that each saying is about.
    runs: dict[str, tuple[str, str]] = field(default_factory=dict)
    awaiting: list[str] = field(default_factory=list)
    dead_lettered: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)


def furnish(served: LiveApi, *, is_admin: bool) -> SeededUser:
    """Put one of everything into a deployment, all of it the served user's; and another user."""
    deployment, user = served.deployment, served.user
    deployment.run(
        "UPDATE users SET is_admin = :admin, max_pending = 1000000, max_concurrent_agents = 100"
        " WHERE id = :id",
        admin=is_admin,
        id=user,
    )
    deployment.agent(agent_id=WORKER)
    victim = deployment.user(name="victim")
    with httpx2.Client(base_url=served.url, timeout=30) as http:
        return _Furnisher(served, http).furnish(
            foreign={
                "user_id": [str(victim), "victim"],
                "key_id": [key_id_of(issue(deployment.app, victim, name="theirs"))],
                "worker_id": [WORKER],
            }
        )


@dataclass
class _Furnisher:
    served: LiveApi
    http: httpx2.Client

    def furnish(self, foreign: dict[str, list[str]]) -> SeededUser:
        agent = self._ask(f"{API}/agents", name="box", slots=100, lease_seconds=3600)["id"]
        other = self._ask(f"{API}/agents", name="other", lease_seconds=3600)["id"]
        runs = {saying: self._run(agent) for saying in SAYINGS}
        dag = self._ask(f"{API}/dags", **GRAPH)["id"]
        task, token = runs["artifacts"]
        kept = self._say(task, token, "artifacts", name="a", kind="json", content="{}")
        keys = [key_id_of(self.served.another_key(self.served.user)) for _ in range(4)]
        return SeededUser(
            named={
                "task_id": [self._task(title="waits")["id"] for _ in range(3)],
                "dag_id": [dag],
                "bulk_id": [self._ask(f"{TASKS}/bulk", action="retry", filter={"tag": "a"})["id"]],
                "trigger_id": [self._ask(f"{API}/dags/{dag}/triggers", graph=GRAPH)["id"]],
                "artifact_id": [kept["id"]],
                # Another one than whose runs go on: it may be sent away.
                "agent_id": [other],
                "key_id": keys,
            },
            foreign=foreign,
            runs=runs,
            ended=[self._ended() for _ in range(3)],
            awaiting=[self._awaiting(agent) for _ in range(8)],
            dead_lettered=[self._dead_lettered(agent) for _ in range(6)],
            locked=[self._run(agent, locks=[f"repo:{n}"])[0] for n in range(4)],
        )

    def _run(self, agent: str, **fields: Any) -> tuple[str, str]:
        """Make a task and have the agent begin it."""
        made = self._task(title="runs", priority_score=0, **fields)
        work = self._ask(f"{API}/agents/{agent}/claim")
        assert work["task_id"] == made["id"]
        self._say(work["task_id"], work["token"], "start")
        return work["task_id"], work["token"]

    def _awaiting(self, agent: str) -> str:
        task, token = self._run(agent, max_cost_usd=1)
        self._say(task, token, "release", reason="budget", cost_usd=2)
        return task

    def _ended(self) -> str:
        """Make a graph and cancel it."""
        dag: str = self._ask(f"{API}/dags", **GRAPH)["id"]
        headers = {"Authorization": f"Bearer {self.served.key}"}
        assert self.http.delete(f"{API}/dags/{dag}", headers=headers).is_success
        return dag

    def _dead_lettered(self, agent: str) -> str:
        task, token = self._run(agent)
        self._say(task, token, "fail", retryable=False)
        return task

    def _task(self, **fields: Any) -> dict[str, Any]:
        return self._ask(TASKS, **fields)

    def _say(self, task: str, token: str, saying: str, **body: Any) -> dict[str, Any]:
        return self._send(f"{TASKS}/{task}/{saying}", token, body)

    def _ask(self, path: str, **body: Any) -> dict[str, Any]:
        return self._send(path, self.served.key, body)

    def _send(self, path: str, key: str, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {key}"}
        answer = self.http.post(path, headers=headers, json=body or None)
        assert answer.is_success, f"{path}: {answer.text}"
        found: dict[str, Any] = answer.json()
        return found
