"""What users wait for at 1, 10,000 and 1,000,000 users with 1M tasks, and behind one held lock."""

import time
from collections.abc import Callable
from uuid import UUID

from benchmarks.bulk_rows import FilledDatabase
from benchmarks.deployment import NO_LIMITS, BenchmarkDeployment, fresh_deployment, noop
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult, percentile
from benchmarks.servers import BenchmarkServers
from benchmarks.started_tasks import AGENT, FOREVER, POOL, begin, settle_batch
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.explain.explain import explain
from overnight_server.gate.claim import ClaimSettings, claim
from overnight_server.insight.queue_overview import queue_overview
from overnight_server.insight.tasks import list_tasks
from overnight_server.intake.submit import submit
from overnight_server.maintenance.audit import audit
from overnight_server.outcome.presence import WorkerDescription, join
from overnight_server.outcome.settle import release

US = "overnight"
SLOTS = 100
USER = UserId(UUID(int=0))
SETTINGS = ClaimSettings(FOREVER, FOREVER)
AUDIT_PASSES = 5
BLOCKED = """
    INSERT INTO tasks (id, user_id, dag_id, type, title, created_by, state, sort_key, locks)
    SELECT id, :user, id, 'noop', 'nothing', 'human:local', 'ready', -1e9, '{k}'
      FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, :count)) new
"""
HOLD = "INSERT INTO held_locks (user_id, key, task_id) VALUES (:user, 'k', gen_random_uuid())"


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Time each operation at each number of users, and a claim with a queue behind a held lock."""
    sizes: tuple[int, ...] = options.choose((1, 100), (1, 10_000, 1_000_000))
    tasks = options.choose(1_000, 1_000_000)
    blocked = options.choose(1_000, 300_000)
    calls = options.choose(5, 100)
    times: dict[tuple[int, str], list[float]] = {}
    result = BenchmarkResult()
    for users in sizes:
        with fresh_deployment(servers) as deployment:
            FilledDatabase(deployment, users).fill_up(tasks)
            join(deployment.dispatcher, WorkerDescription(AGENT, POOL, (), SLOTS))
            for _ in options.rounds_to_run:
                with servers.watch(US):
                    for name, run in ACTS.items():
                        median = percentile([run(deployment) for _ in range(calls)], 0.5)
                        times.setdefault((users, name), []).append(median)
            if users == sizes[-1]:
                longest = max(
                    _seconds(lambda: audit(deployment.dispatcher)) for _ in range(AUDIT_PASSES)
                )
                result.figure(US, f"audit pass, {users:,} users", "s", [longest], "less")
                result.ratios["longest audit pass, seconds"] = longest
            if users == sizes[0]:
                _measure_blocked(result, deployment, blocked, calls)
    for (users, name), values in times.items():
        result.figure(US, f"{name}, {users:,} users", "ms", values, "less")
        if users != sizes[0]:
            result.ratio(f"{name}, {users:,} users / 1 user", values, times[sizes[0], name])
    return result


def _measure_blocked(
    result: BenchmarkResult, deployment: BenchmarkDeployment, count: int, calls: int
) -> None:
    """Compare a claim without and with a queue that waits for a held lock."""
    free = [_claim(deployment) for _ in range(calls)]
    deployment.run(BLOCKED, user=USER, count=count)
    deployment.run(HOLD, user=USER)
    deployment.servers.vacuum_and_checkpoint(deployment.database)
    behind = [_claim(deployment) for _ in range(calls)]
    result.figure(US, f"claim, {count:,} tasks behind a lock", "ms", behind, "less")
    name = "claim behind a held lock / without"
    result.ratios[name] = percentile(behind, 0.5) / percentile(free, 0.5)


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _create(deployment: BenchmarkDeployment) -> float:
    return 1000 * _seconds(lambda: submit(deployment.app, USER, noop(), NO_LIMITS))


def _claim(deployment: BenchmarkDeployment) -> float:
    began = time.perf_counter()
    taken = claim(deployment.dispatcher, POOL, holder=AGENT, claim_settings=SETTINGS, limit=1)
    took = 1000 * (time.perf_counter() - began)
    release(deployment.dispatcher, taken.claims, reason="bench")
    return took


def _settle(deployment: BenchmarkDeployment) -> float:
    runs = begin(deployment, most=1)
    return 1000 * _seconds(lambda: settle_batch(deployment.dispatcher, runs))


def _explain(deployment: BenchmarkDeployment) -> float:
    sql = "SELECT id FROM tasks WHERE user_id = :user AND state = 'ready' ORDER BY id DESC LIMIT 1"
    task = TaskId(deployment.one(sql, user=USER)["id"])
    return 1000 * _seconds(lambda: explain(deployment.app, USER, task, SETTINGS))


def _list(deployment: BenchmarkDeployment) -> float:
    return 1000 * _seconds(lambda: list_tasks(deployment.app, USER))


def _queue_status(deployment: BenchmarkDeployment) -> float:
    return 1000 * _seconds(lambda: queue_overview(deployment.app))


#: What users wait for: each is timed in milliseconds.
ACTS: dict[str, Callable[[BenchmarkDeployment], float]] = {
    "create": _create,
    "claim": _claim,
    "settle": _settle,
    "explain": _explain,
    "list": _list,
    "queue status": _queue_status,
}
