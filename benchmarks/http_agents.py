"""How many HTTP agents one driver serves: its processor time, and the time until all work."""

import statistics
import sys
import time

import psutil

from benchmarks.deployment import BenchmarkDeployment, fresh_deployment
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers
from benchmarks.wait import wait_until
from overnight.models.enums import PlanTier
from overnight_server.control import http_agents
from overnight_server.control.agents import AgentCaps, PullAgentDescription
from overnight_server.control.keys import Caller
from overnight_server.domain.ids import UserId
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.local.ports import free_port

AGENTS_PER_USER = 10
# Each idle agent is asked every five seconds.
REST_SECONDS = 10.0
TASK_SECONDS = 20.0
LIMITS = AgentCaps(agents=10_000)
AT_WORK = "one driver, 500 agents at work, % of one core"


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Add agents, wait until the driver is idle, give each agent a task, and measure the driver."""
    count, rest, task_seconds = options.choose((20, 2.0, 2.0), (500, REST_SECONDS, TASK_SECONDS))
    resting: list[float] = []
    working: list[float] = []
    begin_seconds: list[float] = []
    end_seconds: list[float] = []
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.agent_server", str(port), str(task_seconds)]
    with (
        servers.running("agents", command, {}),
        fresh_deployment(servers, dict(options.settings)) as deployment,
    ):
        users = _users_with_agents(deployment, count, port)
        with deployment.processes("agent-driver") as pids:
            driver = psutil.Process(pids["agent-driver"])
            wait_until(lambda: _healthy(deployment) == count, what=f"{count} agents to answer")
            for _ in options.rounds_to_run:
                with servers.watch("overnight"):
                    resting.append(_processor_share(driver, rest))
                    began_at = time.monotonic()
                    for user in users:
                        tasks = [NewTask("work", type="work") for _ in range(AGENTS_PER_USER)]
                        submit_graph(deployment.app, user, tasks, Caps())
                    wait_until(
                        lambda: _started(deployment) >= count * (len(begin_seconds) + 1),
                        what="all tasks to start",
                    )
                    begin_seconds.append(time.monotonic() - began_at)
                    working.append(_processor_share(driver, task_seconds / 4))
                    wait_until(lambda: not deployment.open_tasks(), what="all tasks to end")
                    end_seconds.append(time.monotonic() - began_at - task_seconds)
            failed = _failed(deployment)
    result = BenchmarkResult()
    who = f"{count} agents"
    result.figure(who, "driver, agents idle", "% of one core", resting, "less")
    result.figure(who, "driver, agents at work", "% of one core", working, "less")
    result.figure(who, "until every task is sent", "s", begin_seconds, "less")
    result.figure(who, "until every result is recorded, beyond the work", "s", end_seconds, "less")
    result.figure(who, "runs that failed", "runs", [failed], "less")
    result.ratios[AT_WORK] = statistics.median(working)
    return result


def _users_with_agents(deployment: BenchmarkDeployment, count: int, port: int) -> list[UserId]:
    users = deployment.users(count // AGENTS_PER_USER, PlanTier.ENTERPRISE)
    deployment.run("UPDATE users SET max_concurrent_agents = 1000")
    for number in range(count):
        user = users[number // AGENTS_PER_USER]
        http_agents.add(
            deployment.owner,
            Caller(user, "", ("*",), is_admin=True),
            PullAgentDescription(f"agent-{number}", types=["work"]),
            f"http://127.0.0.1:{port}/{number}",
            caps=LIMITS,
        )
    return users


def _healthy(deployment: BenchmarkDeployment) -> int:
    sql = "SELECT count(*) AS n FROM http_agents WHERE health = 'idle'"
    return int(deployment.one(sql)["n"])


def _started(deployment: BenchmarkDeployment) -> int:
    sql = "SELECT count(*) AS n FROM attempts WHERE started_at IS NOT NULL"
    return int(deployment.one(sql)["n"])


def _failed(deployment: BenchmarkDeployment) -> int:
    """Count the runs that an agent did not take or finish."""
    sql = "SELECT count(*) AS n FROM attempts WHERE outcome <> 'completed'"
    return int(deployment.one(sql)["n"])


def _processor_share(process: psutil.Process, seconds: float) -> float:
    """Return the share of one core, in percent, that a process uses from now on."""
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    # Each difference by itself: that of the sums can be a rounding error below 0.
    used = (after.user - before.user) + (after.system - before.system)
    return used / seconds * 100
