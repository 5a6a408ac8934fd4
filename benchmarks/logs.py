"""What logs cost: the drain of tasks that print much, and how late a follower sees a line."""

import statistics
import time

from benchmarks.deployment import DRAINERS, fresh_deployment
from benchmarks.drain import FULL_JOBS, QUICK_JOBS, US, drain_ours
from benchmarks.handlers import LINES
from benchmarks.latency import answers
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult, percentile
from benchmarks.servers import BenchmarkServers
from benchmarks.wait import wait_until
from overnight import Client
from overnight.models.enums import PlanTier
from overnight_server.control.keys import issue
from overnight_server.control.users import create_user
from overnight_server.local.ports import free_port

PRINTS = f"overnight, {LINES} lines a task"
FOLLOWER = "overnight logs -f"
# Two hundred runs that print a hundred lines a second each.
LINES_PER_SECOND = 20_000
STEADY = "share of the drain that 20,000 lines a second take"
LAG = "a follower sees a line, p95, seconds"


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Drain silent tasks and tasks that print, in turns; then follow the logs of some that run."""
    jobs = options.jobs or options.choose(QUICK_JOBS, 2 * FULL_JOBS)
    silent, prints = [], []
    for number in options.rounds_to_run:
        silent.append(drain_ours(servers, jobs, options.settings))
        prints.append(drain_ours(servers, jobs, options.settings, who=PRINTS, kind="print"))
        print(
            f"  round {number + 1}: silent {silent[-1]:.1f} jobs/s,"
            f" {LINES} lines {prints[-1]:.1f} jobs/s",
            flush=True,
        )
    lags = _lags(options, servers)
    result = BenchmarkResult()
    result.figure(US, "drain", "jobs/s", silent)
    result.figure(PRINTS, "drain", "jobs/s", prints)
    result.figure(FOLLOWER, "lag p95", "ms", lags, "less")
    result.ratio(f"{PRINTS} / {US}", prints, silent)
    result.rounds[STEADY] = [
        LINES_PER_SECOND * (1 / printing - 1 / quiet) / LINES
        for printing, quiet in zip(prints, silent, strict=True)
    ]
    result.ratios[STEADY] = statistics.median(result.rounds[STEADY])
    result.ratios[LAG] = statistics.median(lags) / 1000
    return result


def _lags(options: Options, servers: BenchmarkServers) -> list[float]:
    """Follow one task a round; return the 95th percentile of the delay of its lines, in ms."""
    port = free_port()
    changes = {**options.settings, "api_port": str(port)}
    with fresh_deployment(servers, changes) as deployment:
        user = create_user(deployment.app, name="ada", plan=PlanTier.ENTERPRISE)
        key = issue(deployment.app, user, name="bench")
        with (
            deployment.processes(*DRAINERS, "api"),
            Client(f"http://127.0.0.1:{port}", key, retries=0) as client,
        ):
            wait_until(lambda: answers(client), what="the API", pause=0.1)
            return [
                percentile(_delays(client, options.choose(20, 200)), 0.95)
                for _ in options.rounds_to_run
            ]


def _delays(client: Client, lines: int) -> list[float]:
    """Return how many milliseconds after it was printed each line of a task reached a follower."""
    task = client.tasks.create("tell the time", type="clock", payload={"lines": lines})
    return [
        1000 * (time.time() - float(line))
        for part in client.tasks.follow_logs(task.id)
        for line in part.text.split()
    ]
