"""What one graph of 90,000 tasks costs: submit, cancel and retry, within the usual timeouts."""

from collections.abc import Sequence

from benchmarks.call_times import Stopwatch
from benchmarks.deployment import NO_LIMITS, noop
from benchmarks.graphs import fan_edges, one_user
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers
from overnight_server.control.cancel import cancel_dag
from overnight_server.control.retry import retry_dag
from overnight_server.intake.new_graph import Edge
from overnight_server.intake.submit import submit_graph
from overnight_server.store.db import ADMIN, Db

US = "overnight"
ACTOR = "human:bench"
LAYER = 300


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Time the three requests for 1 → many → 1 and for layers of tasks with two parents each."""
    size = options.jobs or options.choose(1_500, 90_000)
    result = BenchmarkResult()
    for shape, edges in (("1 → many → 1", fan_edges(size)), ("layers", _layers(size))):
        times: dict[str, list[float]] = {"submit": [], "cancel": [], "retry": []}
        for _ in options.rounds_to_run:
            for what, milliseconds in _one_round(servers, size, edges).items():
                times[what].append(milliseconds)
        for what, values in times.items():
            result.figure(US, f"{what} of {size:,} tasks, {shape}", "ms", values, "less")
    return result


def _one_round(servers: BenchmarkServers, size: int, edges: Sequence[Edge]) -> dict[str, float]:
    with one_user(servers, slots=2) as (deployment, user), servers.watch(US):
        # The timeouts of a deployment, not those of the other benchmarks.
        db = Db.connect(deployment.url, role=ADMIN)
        watch, times = Stopwatch(), {}
        try:
            with watch.running():
                tasks = [noop() for _ in range(size)]
                first, *_ = submit_graph(db, user, tasks, NO_LIMITS, edges=edges, title="large")
            times["submit"] = watch.last_ms
            with watch.running():
                cancelled = cancel_dag(db, user, first.dag_id, actor=ACTOR)
            times["cancel"] = watch.last_ms
            with watch.running():
                revived = retry_dag(db, user, first.dag_id, actor=ACTOR)
            times["retry"] = watch.last_ms
        finally:
            db.close()
    if (cancelled.count, len(revived)) != (size, size):
        raise AssertionError(f"{cancelled.count} cancelled, {len(revived)} revived of {size}")
    return times


def _layers(size: int) -> list[Edge]:
    """Return edges from two tasks of each layer to every task of the next one."""
    return [
        Edge(parent, child)
        for child in range(LAYER, size)
        for parent in {child - LAYER, (child // LAYER - 1) * LAYER + child * 7 % LAYER}
    ]
