"""Jobs per second from a full queue: 100 users with limits, 2 slots, no-op jobs."""

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.deployment import DRAINERS, BenchmarkDeployment, fresh_deployment
from benchmarks.options import Options
from benchmarks.peer_queues import USERS, PeerQueue, PeerRunner, installed_peers
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers
from benchmarks.wait import wait_for_count, wait_until

US = "overnight"
#: Fast queues get more to do, so that every round lasts about as long.
WEIGHTS = {"pgqueuer": 8.0, "dbos": 0.5}
QUICK_JOBS = 100
FULL_JOBS = 3000


class Variant(NamedTuple):
    """One way of running Overnight: its name, how many tasks it gets, and its settings."""

    name: str
    weight: float
    settings: Mapping[str, str] = MappingProxyType({})


class IncompleteRun(Exception):
    """A queue did not do what the benchmark asked of it, so it has no figure."""


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Drain Overnight and every installed peer, in turns."""
    return drain_in_rounds(options, servers, [Variant(US, 4)], installed_peers(options))


def drain_in_rounds(
    options: Options, servers: BenchmarkServers, ours: Sequence[Variant], peers: Sequence[PeerQueue]
) -> BenchmarkResult:
    """Let Overnight and the peers drain the same jobs on the same servers, round by round."""
    jobs = options.jobs or options.choose(QUICK_JOBS, FULL_JOBS)
    rates: dict[str, list[float]] = {}
    result = BenchmarkResult()

    def share(weight: float) -> int:
        return round(jobs * (1 if options.quick else weight))

    for number in options.rounds_to_run:
        for entry in ours:
            if options.wants(entry.name):
                size = share(entry.weight)
                rate = drain_ours(
                    servers, size, {**options.settings, **entry.settings}, who=entry.name
                )
                _note(rates, number, entry.name, size, rate)
        for peer in peers:
            size = share(WEIGHTS.get(peer.name, 1))
            _note(rates, number, peer.name, size, PeerRunner(servers, peer).drain(size))
    for who, values in rates.items():
        result.figure(who, "drain", "jobs/s", values)
    for entry in ours:
        for peer in peers:
            if entry.name in rates:
                result.ratio(f"{entry.name} / {peer.name}", rates[entry.name], rates[peer.name])
    return result


def _note(rates: dict[str, list[float]], number: int, who: str, jobs: int, rate: float) -> None:
    rates.setdefault(who, []).append(rate)
    print(f"  round {number + 1}: {who:<26} {rate:>9.1f} jobs/s ({jobs} jobs)", flush=True)


def drain_ours(
    servers: BenchmarkServers,
    jobs: int,
    changes: Mapping[str, str] | None = None,
    *,
    users: int = USERS,
    workers: int = 1,
    who: str = US,
    kind: str = "noop",
    changed_by: Sequence[str] = (),
) -> float:
    """Fill a paused deployment, resume it, and return the tasks that it settled in a second.

    `changed_by` is SQL that changes the empty database first, to measure what a part of it costs.
    """
    with fresh_deployment(servers, changes) as deployment:
        for sql in changed_by:
            deployment.run(sql)
        people = deployment.users(users)
        deployment.pause(paused=True)
        deployment.fill(people, jobs, kind)
        servers.vacuum_and_checkpoint(deployment.database)
        marks = servers.marks()
        names = [*DRAINERS, *(f"worker-{number}" for number in range(2, workers + 1))]
        with deployment.processes(*names, marks=marks), servers.watch(who):
            deployment.pause(paused=False)
            deployment.wake()
            wait_for_count(marks.count, jobs, what="runs")
            wait_until(lambda: deployment.open_tasks() == 0, what="every task to be settled")
            ended = time.monotonic()
        check_every_task_ran_once(deployment, jobs, marks.count())
        return jobs / (ended - marks.read()[0][0])


def check_every_task_ran_once(deployment: BenchmarkDeployment, jobs: int, runs: int) -> None:
    """Check that every task had its whole life: one run, one attempt and one ledger entry.

    And an event for each move: a slot that takes its next task passes the claim in one instant.
    """
    seen = deployment.one(
        "SELECT (SELECT count(*) FROM tasks WHERE state = 'completed') AS completed,"
        " (SELECT count(*) FROM attempts WHERE outcome = 'completed' AND spent) AS attempts,"
        " (SELECT count(*) FROM usage_ledger WHERE kind = 'usage') AS entries,"
        " (SELECT count(*) FROM tasks t WHERE ARRAY(SELECT to_state FROM events e"
        "   WHERE e.task_id = t.id AND e.to_state <> 'claimed' ORDER BY seq)"
        "   = ARRAY['ready', 'running', 'completed']) AS histories"
    )
    wanted = {"completed": jobs, "attempts": jobs, "entries": jobs, "histories": jobs}
    if dict(seen) != wanted or runs != jobs:
        raise IncompleteRun(f"of {jobs} tasks, {runs} runs left: {dict(seen)}")
