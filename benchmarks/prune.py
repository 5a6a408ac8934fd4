"""What a drain loses while retention deletes old tasks, and how fast it deletes them."""

import statistics
import time
from contextlib import closing

import psycopg2

from benchmarks.deployment import DRAINERS, BenchmarkDeployment, fresh_deployment
from benchmarks.drain import FULL_JOBS, QUICK_JOBS, US
from benchmarks.options import Options
from benchmarks.peer_queues import USERS
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers
from benchmarks.wait import wait_for_count, wait_until
from overnight_server.domain.retention import days_of_rules
from overnight_server.maintenance.retention import prune
from overnight_server.settings import Settings
from overnight_server.store.pass_limit import PASS_SECONDS

PRUNES = "overnight, pruning"
# One pass after the other; by default one begins each minute.
ALWAYS = {"prune_interval": "1"}
KEEPS = {"retention_days": "tasks=36500", **ALWAYS}
SHARE = "share of the drain that retention takes"

# Tasks that ended a hundred days ago, as a worker left them; their events are in a partition.
PARTITION = """
    SELECT add_partition('events', clock() - interval '101 days', clock() - interval '99 days')
"""
TASKS = """
    INSERT INTO tasks (id, user_id, dag_id, type, title, created_by, state, sort_key,
                       revision, epoch, attempts, created_at, updated_at, finished_at)
    SELECT id, user_id, id, 'noop', 'nothing', 'human:local', 'completed', 50, 3, 1, 1, at, at, at
      FROM (SELECT (lpad(to_hex((extract(epoch FROM made_at) * 1000)::bigint + n / 100), 12, '0')
                    || lpad(to_hex(n), 20, '0'))::uuid AS id,
                   (SELECT array_agg(id ORDER BY id) FROM users) [1 + n %% %(users)s] AS user_id,
                   made_at AS at
              FROM generate_series(1, %(tasks)s) n,
                   (SELECT clock() - interval '100 days' AS made_at) t) old
"""
ATTEMPTS = """
    INSERT INTO attempts (task_id, epoch, user_id, token, pool, agent, granted_seconds, claimed_at,
                          started_at, ended_at, outcome, spent)
    SELECT id, 1, user_id, gen_random_uuid(), 'default', 'w', 60, created_at, created_at,
           finished_at, 'completed', true
      FROM tasks WHERE state = 'completed'
"""
EVENTS = """
    INSERT INTO events (task_id, seq, user_id, dag_id, kind, from_state, to_state, epoch, actor, at)
    SELECT t.id, seq, t.user_id, t.dag_id, 'task.completed', 'running', 'completed', 1, 'w',
           t.created_at
      FROM tasks t, generate_series(1, 3) seq
     WHERE t.state = 'completed'
"""


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Drain with old tasks that stay and with old tasks that are deleted, in turns."""
    jobs = options.jobs or options.choose(QUICK_JOBS, 10 * FULL_JOBS)
    old = options.choose(2_000, 200_000)
    quiet, pruning, speeds = [], [], []
    for number in options.rounds_to_run:
        quiet.append(_drain(servers, options, jobs, old, KEEPS))
        pruning.append(_drain(servers, options, jobs, old, ALWAYS))
        speeds.append(_speed(servers, old))
        print(
            f"  round {number + 1}: {quiet[-1]:.1f} jobs/s, pruning {pruning[-1]:.1f} jobs/s,"
            f" {speeds[-1]:.0f} tasks/s deleted alone",
            flush=True,
        )
    result = BenchmarkResult()
    result.figure(US, f"drain beside {old:,} old tasks", "jobs/s", quiet)
    result.figure(PRUNES, "drain, one pass after the other", "jobs/s", pruning)
    result.figure(US, "tasks deleted, nothing else running", "jobs/s", speeds)
    result.ratio(f"{PRUNES} / {US}", pruning, quiet)
    duty = PASS_SECONDS / Settings().prune_interval
    result.rounds[SHARE] = [
        duty * (1 - with_passes / without)
        for with_passes, without in zip(pruning, quiet, strict=True)
    ]
    result.ratios[SHARE] = statistics.median(result.rounds[SHARE])
    return result


def _drain(
    servers: BenchmarkServers, options: Options, jobs: int, old: int, changes: dict[str, str]
) -> float:
    """Return the tasks settled in a second, beside old tasks."""
    with fresh_deployment(servers, {**options.settings, **changes}) as deployment:
        people = deployment.users(USERS)
        _insert_old(deployment, old)
        deployment.pause(paused=True)
        deployment.fill(people, jobs)
        servers.vacuum_and_checkpoint(deployment.database)
        marks = servers.marks()
        with deployment.processes(*DRAINERS, marks=marks), servers.watch(PRUNES):
            deployment.pause(paused=False)
            deployment.wake()
            wait_for_count(marks.count, jobs, what="runs")
            wait_until(lambda: deployment.open_tasks() == 0, what="every task to be settled")
            return jobs / (time.monotonic() - marks.read()[0][0])


def _speed(servers: BenchmarkServers, old: int) -> float:
    """Return how many old tasks are deleted in a second."""
    with fresh_deployment(servers) as deployment:
        deployment.users(USERS)
        _insert_old(deployment, old)
        servers.vacuum_and_checkpoint(deployment.database)
        began, position, deleted = time.monotonic(), None, 0
        while True:
            pruned = prune(deployment.dispatcher, days_of_rules({}), position=position)
            deleted += pruned.deleted["tasks"]
            position = pruned.position
            if position is None:
                return deleted / (time.monotonic() - began)


def _insert_old(deployment: BenchmarkDeployment, tasks: int) -> None:
    """Insert tasks that ended long ago; triggers would count and log each of them."""
    deployment.run(PARTITION)
    url = deployment.servers.superuser_url(deployment.database)
    with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        for sql in (TASKS, ATTEMPTS, EVENTS):
            cursor.execute(sql, {"users": USERS, "tasks": tasks})
