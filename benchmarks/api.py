"""The API: a create compared with the submit itself, and creates and reads from eight callers.

Each caller is a user, because the creates of one user wait for each other's commits. Rates are
compared with the submits that one caller without HTTP makes in turn, in the same round.
"""

import json
import socket
import time

from benchmarks.deployment import NO_LIMITS, BenchmarkDeployment, fresh_deployment, noop
from benchmarks.http_callers import as_request, call_api, read_response
from benchmarks.latency import SHARES
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult, percentile
from benchmarks.servers import BenchmarkServers
from benchmarks.wait import wait_until
from overnight.models.enums import PlanTier
from overnight_server.control.keys import issue
from overnight_server.domain.ids import UserId
from overnight_server.intake.submit import submit
from overnight_server.local.ports import free_port

ALONE = "one caller"
BESIDE = "eight callers"
INSIDE = "without HTTP"
CALLERS = 8
PROCESSES = 2
WARM_UP = 50
TASKS = "/api/v1/tasks"
CREATE = f"POST {TASKS}"
READS = {
    f"GET {TASKS}/ID": f"{TASKS}/{{task}}",
    f"GET {TASKS}/queue-status": f"{TASKS}/queue-status",
    f"GET {TASKS}?limit=50": f"{TASKS}?limit=50",
}
NEW_TASK = b'{"title": "nothing", "type": "noop"}'


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Create tasks over HTTP and by intake itself, then read them; no worker runs them."""
    calls = options.jobs or options.choose(20, 500)
    waits: dict[tuple[str, str], list[float]] = {}
    rates: dict[str, list[float]] = {}
    for number in options.rounds_to_run:
        times, per_second = _round(servers, calls, options)
        for who, milliseconds in times.items():
            shown = {share: percentile(milliseconds, part) for share, part in SHARES.items()}
            for share, value in shown.items():
                waits.setdefault((who, share), []).append(value)
            words = ", ".join(f"{share} {value:.2f} ms" for share, value in shown.items())
            print(f"  round {number + 1}: {who:<14} {words}", flush=True)
        for what, rate in per_second.items():
            rates.setdefault(what, []).append(rate)
            print(f"  round {number + 1}: {what:<32} {rate:.0f}/s", flush=True)
    result = BenchmarkResult()
    for (who, share), values in waits.items():
        result.figure(who, f"{CREATE}, {share}", "ms", values, "less")
    for share in SHARES:
        result.ratio(f"{ALONE} / {INSIDE}, {share}", waits[ALONE, share], waits[INSIDE, share])
    in_turn = [1000 / milliseconds for milliseconds in waits[INSIDE, "p50"]]
    for what, values in rates.items():
        result.figure(BESIDE, what, "requests/s", values)
        result.ratio(f"{what} / submits in turn, rate", values, in_turn)
    return result


def _round(
    servers: BenchmarkServers, calls: int, options: Options
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return how long creates took, and how many requests of each kind a second had a response."""
    port = free_port()
    # Nobody is to be held back by the limit on requests.
    changes = {"rate_limit_per_second": "0", "api_processes": str(PROCESSES)}
    with fresh_deployment(
        servers, {**changes, **options.settings, "api_port": str(port)}
    ) as deployment:
        users = deployment.users(CALLERS, PlanTier.ENTERPRISE)
        deployment.run("UPDATE users SET max_pending = 1000000")
        keys = [issue(deployment.app, user, name="bench") for user in users]
        creates = [as_request("POST", TASKS, key, NEW_TASK) for key in keys]
        with deployment.processes("api"):
            wait_until(lambda: _listens(port), what="the API", pause=0.1)
            tasks = [_create_task(create, port) for create in creates]
            call_api(creates, port, calls=WARM_UP)
            _submit(deployment, users[0], WARM_UP)
            with servers.watch(ALONE):
                alone = call_api(creates[:1], port, calls=calls)
            with servers.watch(INSIDE):
                inside = _submit(deployment, users[0], calls)
            rates = {}
            with servers.watch(BESIDE):
                beside = call_api(creates, port, calls=2 * calls)
                rates[CREATE] = beside.per_second
                for what, path in READS.items():
                    reads = [
                        as_request("GET", path.format(task=task), key)
                        for key, task in zip(keys, tasks, strict=True)
                    ]
                    call_api(reads, port, calls=WARM_UP)
                    rates[what] = call_api(reads, port, calls=2 * calls).per_second
    waits = {ALONE: alone.milliseconds, BESIDE: beside.milliseconds, INSIDE: inside}
    return {who: list(times) for who, times in waits.items()}, rates


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def _create_task(request: bytes, port: int) -> str:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request)
        return str(json.loads(read_response(connection))["id"])


def _submit(deployment: BenchmarkDeployment, user: UserId, calls: int) -> list[float]:
    waits = []
    for _ in range(calls):
        began = time.perf_counter()
        submit(deployment.app, user, noop(), NO_LIMITS)
        waits.append((time.perf_counter() - began) * 1000)
    return waits
