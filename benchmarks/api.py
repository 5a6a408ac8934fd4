"""Milliseconds of a create over HTTP, alone and with seven others; no worker runs the tasks."""

import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.deployment import NO_LIMITS, BenchmarkDeployment, fresh_deployment, noop
from benchmarks.latency import SHARES, answers
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult, percentile
from benchmarks.servers import BenchmarkServers
from benchmarks.wait import wait_until
from overnight import Client
from overnight.models.enums import PlanTier
from overnight_server.control.keys import issue
from overnight_server.control.users import create_user
from overnight_server.intake.submit import submit
from overnight_server.local.ports import free_port

ALONE = "one caller"
BESIDE = "eight callers"
INSIDE = "without HTTP"
CALLERS = 8
WARM_UP = 10


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Create tasks over HTTP from one caller and from eight, and by intake itself beside them."""
    calls = options.jobs or options.choose(20, 500)
    reached: dict[tuple[str, str], list[float]] = {}
    rates: list[float] = []
    result = BenchmarkResult()
    for number in options.rounds_to_run:
        waits, rate = _round(servers, calls, options)
        rates.append(rate)
        for who, times in waits.items():
            shown = {share: percentile(times, part) for share, part in SHARES.items()}
            for share, value in shown.items():
                reached.setdefault((who, share), []).append(value)
            words = ", ".join(f"{share} {value:.1f} ms" for share, value in shown.items())
            print(f"  round {number + 1}: {who:<14} {words}", flush=True)
    for (who, share), values in reached.items():
        result.figure(who, f"POST /api/v1/tasks, {share}", "ms", values, "less")
        if who != INSIDE:
            result.ratio(f"{who} / {INSIDE}, {share}", values, reached[INSIDE, share])
    result.figure(BESIDE, "POST /api/v1/tasks", "requests/s", rates)
    return result


def _round(
    servers: BenchmarkServers, calls: int, options: Options
) -> tuple[dict[str, list[float]], float]:
    """Return how long each create took, and how many a second eight callers had answered."""
    port = free_port()
    # Nobody is to be held back by the limit on requests.
    roomy = {"rate_limit_per_second": "0"}
    with fresh_deployment(
        servers, {**options.settings, **roomy, "api_port": str(port)}
    ) as deployment:
        user = create_user(deployment.app, name="ada", plan=PlanTier.ENTERPRISE)
        deployment.run("UPDATE users SET max_pending = 1000000")
        key = issue(deployment.app, user, name="bench")
        with (
            deployment.processes("api"),
            Client(f"http://127.0.0.1:{port}", key, retries=0) as client,
        ):
            wait_until(lambda: answers(client), what="the API", pause=0.1)
            _created(client, WARM_UP)
            with servers.watch(ALONE):
                alone = _created(client, calls)
            with servers.watch(BESIDE), ThreadPoolExecutor(CALLERS) as callers:
                began = time.perf_counter()
                each = [callers.submit(_created, client, calls // CALLERS) for _ in range(CALLERS)]
                beside = [wait for one in each for wait in one.result()]
                rate = len(beside) / (time.perf_counter() - began)
            with servers.watch(INSIDE):
                inside = _submitted(deployment, calls)
    return {ALONE: alone, BESIDE: beside, INSIDE: inside}, rate


def _created(client: Client, calls: int) -> list[float]:
    waits = []
    for _ in range(calls):
        began = time.perf_counter()
        client.tasks.create("nothing", type="noop")
        waits.append((time.perf_counter() - began) * 1000)
    return waits


def _submitted(deployment: BenchmarkDeployment, calls: int) -> list[float]:
    [user] = [row["id"] for row in deployment.rows("SELECT id FROM users")]
    waits = []
    for _ in range(calls):
        began = time.perf_counter()
        submit(deployment.app, user, noop(), NO_LIMITS)
        waits.append((time.perf_counter() - began) * 1000)
    return waits
