"""A served deployment with at least one object of every kind, and the ids of all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from overnight_server.control.keys import issue, key_id_of
from overnight_server.domain.ids import parse_hook, parse_task, show_task
from tests.support.live_api import LiveApi
from tests.support.notifications import add_channel
from tests.support.rejected_output import dead_letter

API = "/api/v1"
TASKS = f"{API}/tasks"
WORKER = "test-host:1:boot"
GRAPH = {"title": "a graph", "tasks": [{"name": "a"}, {"name": "b", "after": ["a"]}]}
# The routes under a run's claim token. Each gets a run of its own, because some of them end it.
RUN_ROUTES = (
    *("start", "heartbeat", "extend", "complete", "fail", "release", "suspend", "spawn"),
    *("children", "artifacts", "logs"),
)


@dataclass
class SeededUser:
    """The ids that a path may contain, by the name of the path parameter, and the running tasks."""

    own: dict[str, list[str]]
    #: Objects of another user, for the admin routes.
    foreign: dict[str, list[str]]
    #: The task and the claim token for each of the `RUN_ROUTES`.
    runs: dict[str, tuple[str, str]] = field(default_factory=dict)
    awaiting: list[str] = field(default_factory=list)
    dead_lettered: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    #: The schedule that requests may remove, so that the others stay.
    removable: str = ""


def seed(served: LiveApi, *, is_admin: bool) -> SeededUser:
    """Create objects of every kind for the served user, and a second user."""
    deployment, user = served.deployment, served.user
    deployment.run(
        "UPDATE users SET is_admin = :admin, max_pending = 1000000, max_concurrent_agents = 100"
        " WHERE id = :id",
        admin=is_admin,
        id=user,
    )
    deployment.agent(agent_id=WORKER)
    deployment.agent()
    rejected = [show_task(dead_letter(deployment, user)) for _ in range(2)]
    other = deployment.user(name="other")
    with httpx2.Client(base_url=served.url, timeout=30) as http:
        return _Seeder(served, http).seed(
            foreign={
                "user_id": [str(other), "other"],
                "key_id": [key_id_of(issue(deployment.app, other, name="theirs"))],
                "worker_id": [WORKER],
            },
            rejected=rejected,
        )


@dataclass
class _Seeder:
    served: LiveApi
    http: httpx2.Client

    def seed(self, foreign: dict[str, list[str]], rejected: list[str]) -> SeededUser:
        agent = self._post(f"{API}/agents", name="box", slots=100, lease_seconds=3600)["id"]
        other = self._post(f"{API}/agents", name="other", lease_seconds=3600)["id"]
        runs = {route: self._run(agent) for route in RUN_ROUTES}
        dag = self._post(f"{API}/dags", **GRAPH)["id"]
        task, token = runs["artifacts"]
        artifact = self._report(task, token, "artifacts", name="a", kind="json", content="{}")
        # The run goes on, and others see the artifact all the same.
        self.served.deployment.run(
            "SELECT promote_artifacts(:task, 1, NULL)", task=parse_task(task)
        )
        keys = [key_id_of(self.served.another_key(self.served.user)) for _ in range(4)]
        channels = [self._channel(name) for name in ("first", "second", "third")]
        hooks = [self._hook(name) for name in ("first", "second", "third")]
        return SeededUser(
            own={
                "task_id": [self._task(title="waits")["id"] for _ in range(3)],
                "dag_id": [dag],
                "bulk_id": [self._post(f"{TASKS}/bulk", action="retry", filter={"tag": "a"})["id"]],
                "trigger_id": [self._post(f"{API}/dags/{dag}/triggers", graph=GRAPH)["id"]],
                "schedule_id": [self._schedule(name) for name in ("nightly", "weekly", "monthly")],
                "artifact_id": [artifact["id"]],
                # Not the agent of the runs, because a request may remove it.
                "agent_id": [other],
                "key_id": keys,
                "finding_id": [self._finding() for _ in range(3)],
                "rule_id": [self._rule(name) for name in ("first", "second", "third")],
                "hook_id": hooks,
                "channel": channels,
                "notification_id": [self._notification(channel) for channel in channels],
                "delivery_id": [self._delivery(hook) for hook in hooks],
                "day": ["latest"],
                "profile": [self._profile(name) for name in ("claude", "codex")],
            },
            foreign=foreign,
            runs=runs,
            ended=[self._ended() for _ in range(3)],
            removable=self._schedule("removable"),
            awaiting=[self._awaiting(agent) for _ in range(8)],
            dead_lettered=[self._dead_lettered(agent) for _ in range(6)],
            rejected=rejected,
            locked=[self._run(agent, locks=[f"repo:{n}"])[0] for n in range(4)],
        )

    def _schedule(self, name: str) -> str:
        made: str = self._post(
            f"{API}/schedules", name=name, when="every day at 22:00", task={"title": "a task"}
        )["id"]
        return made

    def _finding(self) -> str:
        """Store a finding of the audit and return its number."""
        row = self.served.deployment.one(
            "INSERT INTO audit_findings (check_name, subject, detail)"
            " VALUES ('edges', gen_random_uuid()::text, '{}') RETURNING id"
        )
        return str(row["id"])

    def _channel(self, name: str) -> str:
        """Add a channel of notifications and return its name."""
        add_channel(self.served.deployment, self.served.user, name=name)
        return name

    def _notification(self, channel: str) -> str:
        """Return the number of a delivery to a channel that has failed for good."""
        number = str(self._post(f"{API}/notifications/channels/{channel}/test")["id"])
        self.served.deployment.run(
            "UPDATE notification_deliveries SET state = 'dead', ended_at = clock() WHERE id = :id",
            id=int(number),
        )
        return number

    def _hook(self, name: str) -> str:
        """Add a source of webhooks and return its id."""
        made: str = self._post(f"{API}/hooks", name=name, preset="generic")["id"]
        return made

    def _rule(self, name: str) -> str:
        """Add an improvement rule and return its id."""
        made: str = self._post(f"{API}/rules", name=name, figure="retries", above=1)["id"]
        return made

    def _delivery(self, hook: str) -> str:
        """Store a delivery of a source of webhooks and return its number."""
        row = self.served.deployment.one(
            "INSERT INTO received_hooks (source_id, user_id, headers, body, outcome)"
            " VALUES (:hook, :user, '{}', '{}', 'ignored') RETURNING id",
            hook=parse_hook(hook),
            user=self.served.user,
        )
        return str(row["id"])

    def _profile(self, name: str) -> str:
        """Store an agent profile and return its name."""
        self.served.deployment.run(
            'INSERT INTO agent_profiles (name, profile) VALUES (:name, \'{"argv": ["true"]}\')',
            name=name,
        )
        return name

    def _run(self, agent: str, **fields: Any) -> tuple[str, str]:
        """Create a task and let the agent start it."""
        task = self._task(title="runs", priority_score=0, **fields)
        work = self._post(f"{API}/agents/{agent}/claim")
        assert work["task_id"] == task["id"]
        self._report(work["task_id"], work["token"], "start")
        return work["task_id"], work["token"]

    def _awaiting(self, agent: str) -> str:
        task, token = self._run(agent, max_cost_usd=1)
        self._report(task, token, "release", reason="budget", cost_usd=2)
        return task

    def _ended(self) -> str:
        """Create a graph and cancel it."""
        dag: str = self._post(f"{API}/dags", **GRAPH)["id"]
        headers = {"Authorization": f"Bearer {self.served.key}"}
        assert self.http.delete(f"{API}/dags/{dag}", headers=headers).is_success
        return dag

    def _dead_lettered(self, agent: str) -> str:
        task, token = self._run(agent)
        self._report(task, token, "fail", retryable=False)
        return task

    def _task(self, **fields: Any) -> dict[str, Any]:
        return self._post(TASKS, **fields)

    def _report(self, task: str, token: str, route: str, **body: Any) -> dict[str, Any]:
        return self._send(f"{TASKS}/{task}/{route}", token, body)

    def _post(self, path: str, **body: Any) -> dict[str, Any]:
        return self._send(path, self.served.key, body)

    def _send(self, path: str, key: str, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {key}"}
        response = self.http.post(path, headers=headers, json=body or None)
        assert response.is_success, f"{path}: {response.text}"
        created: dict[str, Any] = response.json()
        return created
