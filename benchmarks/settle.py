"""Runs settled per second, one at a time and in batches, by 1 and by 4 processes."""

from collections.abc import Sequence

from benchmarks.call_times import ProcessGroup, connect_as_dispatcher
from benchmarks.deployment import fresh_deployment
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers
from benchmarks.started_tasks import batched, begin, lift_limits, settle_batches

US = "overnight"
BATCHES = (1, 10, 100)
CREWS = (1, 4)
USERS = 100


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Settle new runs of many users with every batch size and number of processes, in turns."""
    runs_for = dict(zip(BATCHES, options.choose((40, 200, 800), (800, 4_000, 8_000)), strict=True))
    crews: Sequence[int] = options.choose(CREWS[:1], CREWS)
    rates: dict[tuple[int, int], list[float]] = {}
    result = BenchmarkResult()
    with fresh_deployment(servers) as deployment:
        users = deployment.users(USERS)
        lift_limits(deployment, users, slots=max(runs_for.values()))
        for size in crews:
            with ProcessGroup(connect_as_dispatcher, deployment.url, size) as crew:
                for _ in options.rounds_to_run:
                    for batch, count in runs_for.items():
                        deployment.fill(users, count)
                        work = batched(begin(deployment), batch)
                        with servers.watch(US):
                            seconds = crew.seconds(settle_batches, work)
                        rates.setdefault((size, batch), []).append(count / seconds)
    for (size, batch), values in rates.items():
        result.figure(US, f"batches of {batch}, {size} processes", "settles/s", values)
    for size in crews:
        for batch in BATCHES[1:]:
            name = f"batches of {batch} / single, {size} processes"
            result.ratio(name, rates[size, batch], rates[size, 1])
    return result
