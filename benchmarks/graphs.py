"""What graphs cost: 10,000 tasks inserted at once, 1 → 10,000 → 1, and a chain of 1,000."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.call_times import ProcessGroup, Stopwatch, connect_as_dispatcher
from benchmarks.deployment import DRAINERS, NO_LIMITS, BenchmarkDeployment, fresh_deployment, noop
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers
from benchmarks.started_tasks import batched, begin, lift_limits, settle_batch, settle_batches
from benchmarks.wait import wait_for_count, wait_until
from overnight_server.domain.ids import UserId
from overnight_server.intake.new_graph import Edge
from overnight_server.intake.submit import submit_graph

US = "overnight"
WORKERS = 4
BATCHES = (1, 50)
# The rows of a release and their indexes, without our triggers and without anybody waiting.
PLAIN_ROWS = """
    CREATE TABLE plain_tasks (LIKE tasks INCLUDING ALL EXCLUDING GENERATED);
    INSERT INTO plain_tasks OVERRIDING SYSTEM VALUE SELECT * FROM tasks WHERE state = 'pending'
"""
PLAIN_UPDATE = "UPDATE plain_tasks SET state = 'ready', unmet = 0, revision = revision + 1"


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Measure the insert, the release, the fan-in, all three in sequence, and a chain."""
    size = options.choose(200, 10_000)
    steps = options.choose(10, 1_000)
    result = BenchmarkResult()
    creations(servers, result, size, options.rounds_to_run)
    releases(servers, result, size, options.rounds_to_run)
    fan_ins(servers, result, size, options)
    fans(servers, result, size, options.rounds_to_run)
    chain(servers, result, steps, options)
    return result


@contextmanager
def one_user(servers: BenchmarkServers, slots: int) -> Iterator[tuple[BenchmarkDeployment, UserId]]:
    """Create a deployment with one user without limits."""
    with fresh_deployment(servers) as deployment:
        [user] = deployment.users(1)
        lift_limits(deployment, [user], slots)
        yield deployment, user


def creations(
    servers: BenchmarkServers, result: BenchmarkResult, size: int, rounds_to_run: range
) -> None:
    """Time the submit of one graph of `size` tasks, and of as many single tasks."""
    graphs: list[float] = []
    lone: list[float] = []
    watch = Stopwatch()
    for _ in rounds_to_run:
        for edges, found in ((fan_edges(size), graphs), ([], lone)):
            with one_user(servers, slots=2) as (deployment, user), servers.watch(US):
                tasks = [noop() for _ in range(size)]
                with watch.running():
                    submit_graph(deployment.app, user, tasks, NO_LIMITS, edges=edges)
                found.append(watch.last_ms)
    result.figure(US, f"one graph of {size:,} tasks inserted", "ms", graphs, "less")
    result.figure(US, f"{size:,} single tasks inserted", "ms", lone, "less")
    result.ratio("graph / single tasks, time to insert", graphs, lone)


def fans(
    servers: BenchmarkServers, result: BenchmarkResult, size: int, rounds_to_run: range
) -> None:
    """Run 1 → many → 1 from its first claim to its last settle, without Celery."""
    rates = []
    for _ in rounds_to_run:
        with one_user(servers, slots=size) as (deployment, user):
            tasks = [noop() for _ in range(size)]
            submit_graph(deployment.app, user, tasks, NO_LIMITS, edges=fan_edges(size))
            servers.vacuum_and_checkpoint(deployment.database)
            began, done = time.perf_counter(), 0
            with servers.watch(US):
                while runs := begin(deployment):
                    for batch in batched(runs, BATCHES[-1]):
                        settle_batch(deployment.dispatcher, batch)
                    done += len(runs)
            if done != size:
                raise AssertionError(f"{done} of {size} tasks of the graph ran")
            rates.append(done / (time.perf_counter() - began))
    result.figure(US, f"1 → {size - 2:,} → 1, claim to settled", "tasks/s", rates)


def fan_edges(size: int) -> list[Edge]:
    """Return the edges of 1 → many → 1."""
    middle = range(1, size - 1)
    return [edge for one in middle for edge in (Edge(0, one), Edge(one, size - 1))]


def releases(
    servers: BenchmarkServers, result: BenchmarkResult, size: int, rounds_to_run: range
) -> None:
    """Time the settle of one parent whose dependents all become ready, and a plain UPDATE."""
    ours, plain, watch = [], [], Stopwatch()
    for _ in rounds_to_run:
        with one_user(servers, slots=2) as (deployment, user):
            tasks = [noop() for _ in range(size + 1)]
            edges = [Edge(0, child) for child in range(1, size + 1)]
            submit_graph(deployment.app, user, tasks, NO_LIMITS, edges=edges)
            deployment.run(PLAIN_ROWS)
            servers.vacuum_and_checkpoint(deployment.database)
            [parent] = begin(deployment)
            with servers.watch("plain UPDATE"):
                with watch.running():
                    deployment.run(PLAIN_UPDATE)
                plain.append(watch.last_ms)
            with servers.watch(US):
                with watch.running():
                    settle_batch(deployment.dispatcher, [parent])
                ours.append(watch.last_ms)
    result.figure(US, f"release of {size:,} dependents", "ms", ours, "less")
    result.figure("plain UPDATE", f"of {size:,} rows", "ms", plain, "less")
    result.ratio("release / plain UPDATE, time", ours, plain)


def fan_ins(
    servers: BenchmarkServers, result: BenchmarkResult, size: int, options: Options
) -> None:
    """Settle many parents of one child from several processes, and as many tasks without one."""
    rates: dict[tuple[str, int], list[float]] = {}
    batches = options.choose(BATCHES[-1:], BATCHES)
    workers = options.choose(2, WORKERS)
    for _ in options.rounds_to_run:
        for batch in batches:
            count = min(size, 2_000) if batch == 1 else size
            for kind in ("independent", "fan-in"):
                rate = _fan_in(servers, count, batch, workers, joined=kind == "fan-in")
                rates.setdefault((kind, batch), []).append(rate)
    for (kind, batch), values in rates.items():
        result.figure(US, f"{kind}, {workers} workers, batches of {batch}", "settles/s", values)
    for batch in batches:
        name = "fan-in / independent, rate" if batch > 1 else "fan-in / independent, single settles"
        result.ratio(name, rates["fan-in", batch], rates["independent", batch])


def _fan_in(
    servers: BenchmarkServers, count: int, batch: int, workers: int, *, joined: bool
) -> float:
    with one_user(servers, slots=count) as (deployment, user):
        tasks = [noop() for _ in range(count + joined)]
        edges = [Edge(parent, count) for parent in range(count)] if joined else []
        submit_graph(deployment.app, user, tasks, NO_LIMITS, edges=edges)
        servers.vacuum_and_checkpoint(deployment.database)
        work = batched(begin(deployment), batch)
        with (
            ProcessGroup(connect_as_dispatcher, deployment.url, workers) as crew,
            servers.watch(US),
        ):
            seconds = crew.seconds(settle_batches, work)
        if joined and len(begin(deployment)) != 1:
            raise AssertionError("the child of a fan-in was not released")
    return count / seconds


def chain(servers: BenchmarkServers, result: BenchmarkResult, steps: int, options: Options) -> None:
    """Run a chain: in this process without Celery, then with the whole stack."""
    by_hand, through_stack = [], []
    for _ in options.rounds_to_run:
        with one_user(servers, slots=2) as (deployment, user):
            _submit_chain(deployment, user, steps)
            began = time.perf_counter()
            for _step in range(steps):
                [run] = begin(deployment, 1)
                settle_batch(deployment.dispatcher, [run])
            by_hand.append((time.perf_counter() - began) * 1000 / steps)
        through_stack.append(_chain_through_stack(servers, steps, options))
    result.figure(US, "chain without Celery, per step", "ms", by_hand, "less")
    result.figure(US, "chain through the stack, per step", "ms", through_stack, "less")


def _chain_through_stack(servers: BenchmarkServers, steps: int, options: Options) -> float:
    with fresh_deployment(servers, options.settings) as deployment:
        [user] = deployment.users(1)
        marks = servers.marks()
        with deployment.processes(*DRAINERS, marks=marks), servers.watch(US):
            _submit_chain(deployment, user, steps)
            deployment.wake()
            wait_for_count(marks.count, steps, what="steps of the chain")
            wait_until(lambda: deployment.open_tasks() == 0, what="its last settling")
        times = [at for at, _ in marks.read()]
    return (times[-1] - times[0]) * 1000 / (steps - 1)


def _submit_chain(deployment: BenchmarkDeployment, user: UserId, steps: int) -> None:
    edges = [Edge(step, step + 1) for step in range(steps - 1)]
    submit_graph(deployment.app, user, [noop() for _ in range(steps)], NO_LIMITS, edges=edges)
