"""Tasks accepted per second: one by one, and in batches of 500."""

import time
from collections.abc import Callable, Sequence

from benchmarks.deployment import NO_LIMITS, BenchmarkDeployment, fresh_deployment, noop
from benchmarks.options import Options
from benchmarks.peer_queues import ALL, PROCRASTINATE_LOCKED, PeerQueue, PeerRunner, installed_peers
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers
from overnight_server.domain.ids import UserId
from overnight_server.intake.submit import submit, submit_graph

US = "overnight"
SIZE = 500
USERS = 100


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Submit to Overnight and to every installed peer, in turns, without workers."""
    # A lock changes nothing for whoever submits.
    peers = installed_peers(options, [peer for peer in ALL if peer is not PROCRASTINATE_LOCKED])
    single, batches = options.choose((50, 2), (1_000, 20))
    rates: dict[tuple[str, str], list[float]] = {}
    result = BenchmarkResult()
    for number in options.rounds_to_run:
        rounds_to_run: list[tuple[str, Callable[[], dict[str, float]]]] = [
            (US, lambda: _ours(servers, single, batches)),
            *((peer.name, _theirs(servers, peer, single, batches)) for peer in peers),
        ]
        for who, turn in rounds_to_run:
            if options.wants(who):
                reached = turn()
                for way, rate in reached.items():
                    rates.setdefault((who, way), []).append(rate)
                shown = ", ".join(f"{way} {rate:.0f}/s" for way, rate in reached.items())
                print(f"  round {number + 1}: {who:<14} {shown}", flush=True)
    for (who, way), values in rates.items():
        result.figure(who, way, "tasks/s", values)
        if who != US and (US, way) in rates:
            result.ratio(f"{US} / {who}, {way}", rates[US, way], values)
    return result


def _ours(servers: BenchmarkServers, single: int, batches: int) -> dict[str, float]:
    with fresh_deployment(servers) as deployment:
        users = deployment.users(USERS)
        _submit_singly(deployment, users, 1)
        _submit_batches(deployment, users, 1)
        with servers.watch(US):
            return {
                "single": single / _submit_singly(deployment, users, single),
                "batch": batches * SIZE / _submit_batches(deployment, users, batches),
            }


def _submit_singly(deployment: BenchmarkDeployment, users: Sequence[UserId], count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        submit(deployment.app, users[number % len(users)], noop(), NO_LIMITS)
    return time.perf_counter() - began


def _submit_batches(deployment: BenchmarkDeployment, users: Sequence[UserId], count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        submit_graph(
            deployment.app, users[number % len(users)], [noop() for _ in range(SIZE)], NO_LIMITS
        )
    return time.perf_counter() - began


def _theirs(
    servers: BenchmarkServers, peer: PeerQueue, single: int, batches: int
) -> Callable[[], dict[str, float]]:
    def turn() -> dict[str, float]:
        runner = PeerRunner(servers, peer)
        with servers.watch(peer.name):
            answer = runner.ask("submit", single=single, batches=batches, size=SIZE)
        return {way: float(answer[way]) for way in ("single", "batch")}

    return turn
