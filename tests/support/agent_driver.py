"""Agent drivers as real processes, and HTTP agents that they serve."""

import subprocess
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from overnight_server.control import http_agents
from overnight_server.control.agents import AgentCaps, PullAgentDescription
from overnight_server.control.keys import Caller
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import reap
from overnight_server.settings import Settings
from tests.support import logins
from tests.support.deployment import Deployment
from tests.support.scripted_agent import SECRET, ScriptedAgent
from tests.support.wait import wait_until
from tests.support.workers import SOURCES, environment

LEASE = timedelta(seconds=4)
SHORT = {
    "completion_poll_interval": 0.2,
    "dispatch_timeout": 1,
    "cancel_grace": 1,
    "worker_liveness": 2,
}
FINAL = ("completed", "dead_lettered", "cancelled")


@dataclass
class DrivenFleet:
    """A user, HTTP agents of that user, and drivers that serve them."""

    deployment: Deployment
    settings: Settings
    folder: Path
    user: UserId
    agents: list[ScriptedAgent] = field(default_factory=list)
    drivers: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def with_polls_every(self, seconds: float) -> Settings:
        """Return the settings with another interval between polls."""
        return self.settings.model_copy(update={"completion_poll_interval": seconds})

    def agent(self, *, slots: int = 1, max_age_seconds: int = 60, **card: Any) -> ScriptedAgent:
        """Start an agent and add its address, as an operator would."""
        name = f"agent-{len(self.agents) + 1}"
        agent = ScriptedAgent(self.folder / name, slots, max_age_seconds=max_age_seconds)
        self.agents.append(agent)
        agent.start()
        add_agent(self.deployment, self.user, name, agent.url, slots=slots, **card)
        return agent

    def drive(self, **environ: str) -> "subprocess.Popen[bytes]":
        """Start a driver."""
        login = logins.for_service(str(self.settings.database_url))
        with (self.folder / f"driver-{len(self.drivers) + 1}.log").open("wb") as log:
            driver = subprocess.Popen(
                [sys.executable, "-m", "overnight_server.cli.main", "agent-driver"],
                env=environment(self.settings)
                | {"OVERNIGHT_DATABASE_URL": login, "PYTHONPATH": SOURCES}
                | environ,
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        self.drivers.append(driver)
        return driver

    def healthy(self, count: int) -> None:
        """Wait until so many agents are known to be idle."""
        sql = "SELECT count(*) AS n FROM http_agents WHERE health = 'idle'"
        wait_until(lambda: self.deployment.one(sql)["n"] >= count, what=f"{count} idle agents")

    def log_text(self) -> str:
        """Return the logs of all drivers."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("driver-*.log")))

    def wait_for_log(self, text: str) -> str:
        """Wait until the logs contain a text, which is written after the commit; return them."""
        wait_until(lambda: text in self.log_text(), what=f"{text} in the logs")
        return self.log_text()

    def task(self, **fields: Any) -> TaskId:
        """Submit a task that the agents can run."""
        values = {
            "type": "prompt",
            "payload": {"seconds": 0.1},
            "spec": {"prompt": "hello"},
            "retry": RetryRules(strategy=Strategy.IMMEDIATE),
        }
        return self.deployment.task(self.user, **{**values, **fields})

    def state(self, task_id: TaskId) -> str:
        """Sweep as maintenance does, and return the state of a task."""
        reap(self.deployment.dispatcher)
        promote(self.deployment.dispatcher)
        return self.deployment.state(task_id)

    def wait_for(self, task_id: TaskId, *states: str, timeout: float = 40) -> dict[str, Any]:
        """Wait until a task has one of these states, by default a final one; return its row."""
        wanted = states or FINAL
        wait_until(
            lambda: self.state(task_id) in wanted,
            what=f"{show_task(task_id)} to be {wanted}",
            timeout=timeout,
        )
        return dict(self.deployment.row(task_id))

    def outcomes(self, task_id: TaskId) -> list[str]:
        """Return how the claims of a task ended, in order."""
        rows = self.deployment.rows(
            "SELECT outcome FROM attempts WHERE task_id = :id ORDER BY epoch", id=task_id
        )
        return [row["outcome"] for row in rows]

    def stop(self) -> None:
        """End everything."""
        for driver in self.drivers:
            driver.kill()
            driver.wait()
        for agent in self.agents:
            agent.kill()


def add_agent(
    deployment: Deployment, user: UserId, name: str, url: str, **card: Any
) -> http_agents.AddedAgent:
    """Add an HTTP agent with the rights of an operator."""
    values = {"types": ["prompt"], "stale_after": LEASE, **card}
    return http_agents.add(
        deployment.owner,
        Caller(user, "", ("*",), is_admin=True),
        PullAgentDescription(name, **values),
        url,
        secret=SECRET,
        caps=AgentCaps(agents=10_000),
        min_lease=timedelta(0),
    )
