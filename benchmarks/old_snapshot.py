"""What a claim costs while another session keeps an old snapshot, as a backup or a report does."""

from contextlib import closing

import psycopg2

from benchmarks.call_times import Stopwatch
from benchmarks.deployment import NO_LIMITS, BenchmarkDeployment, fresh_deployment, noop
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers
from benchmarks.started_tasks import batched, begin, lift_limits, settle_batch
from overnight_server.domain.ids import UserId
from overnight_server.intake.submit import submit_graph

US = "overnight"
SLOTS = 100_000
CLAIMS = 30
SETTLED_AT_ONCE = 100
AT_ONCE = 500


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Time claims of one task before, during and after the snapshot, with one user and with 50."""
    tasks = options.jobs or options.choose(500, 26_000)
    result = BenchmarkResult()
    for users in (1, 50):
        fresh: list[float] = []
        during: list[float] = []
        after: list[float] = []
        for _ in options.rounds_to_run:
            with fresh_deployment(servers) as deployment, servers.watch(US):
                owners = deployment.users(users)
                lift_limits(deployment, owners, SLOTS)
                _run_tasks(deployment, owners, AT_ONCE)
                servers.vacuum_and_checkpoint(deployment.database)
                fresh += _claim_times(deployment, owners)
                with closing(psycopg2.connect(deployment.url)) as report, report.cursor() as cursor:
                    report.set_session(isolation_level="REPEATABLE READ")
                    cursor.execute("SELECT 1")
                    _run_tasks(deployment, owners, tasks)
                    during += _claim_times(deployment, owners)
                servers.vacuum_and_checkpoint(deployment.database)
                after += _claim_times(deployment, owners)
        name = f"claim of one task, {users} users" if users > 1 else "claim of one task, one user"
        result.figure(US, name, "ms", fresh, "less")
        result.figure(US, f"{name}, {tasks:,} tasks run under a snapshot", "ms", during, "less")
        result.figure(US, f"{name}, after the snapshot and a VACUUM", "ms", after, "less")
        result.ratio(f"under a snapshot / fresh, {users} users", during, fresh)
    return result


def _run_tasks(deployment: BenchmarkDeployment, users: list[UserId], count: int) -> None:
    done = 0
    while done < count:
        each = max(1, min(AT_ONCE, count) // len(users))
        for user in users:
            submit_graph(deployment.app, user, [noop() for _ in range(each)], NO_LIMITS)
        runs = begin(deployment)
        for batch in batched(runs, SETTLED_AT_ONCE):
            settle_batch(deployment.dispatcher, batch)
        done += len(runs)


def _claim_times(deployment: BenchmarkDeployment, users: list[UserId]) -> list[float]:
    """Return the milliseconds of each claim and start of one task of a waiting queue."""
    for user in users:
        tasks = [noop() for _ in range(max(2, 2 * CLAIMS // len(users)))]
        submit_graph(deployment.app, user, tasks, NO_LIMITS)
    watch, times = Stopwatch(), []
    for _ in range(CLAIMS):
        with watch.running():
            runs = begin(deployment, 1)
        times.append(watch.last_ms)
        settle_batch(deployment.dispatcher, runs)
    return times
