"""Milliseconds from submit to start without other load."""

import time
from collections.abc import Callable, Sequence
from itertools import product

from benchmarks.deployment import DRAINERS, NO_LIMITS, fresh_deployment, noop
from benchmarks.options import Options
from benchmarks.peer_queues import (
    CELERY,
    PGQUEUER,
    PROCRASTINATE,
    PeerQueue,
    PeerRunner,
    installed_peers,
)
from benchmarks.peers.protocol import wait_for_mark
from benchmarks.results import BenchmarkResult, percentile
from benchmarks.servers import BenchmarkServers
from benchmarks.start_marks import Marks
from benchmarks.wait import wait_until
from overnight import Client
from overnight.errors import Unreachable
from overnight.models.enums import PlanTier
from overnight_server.control.keys import issue
from overnight_server.control.users import create_user
from overnight_server.intake.submit import submit
from overnight_server.local.ports import free_port
from overnight_server.wakeups.wake import Waker

US = "overnight"
US_BY_HTTP = "overnight over HTTP"
US_RESTED = "overnight, after idle time"
US_BY_MESSAGE = "overnight, not known to be short"
US_INSIDE = "overnight inside"
CELERY_RESTED = "celery, after idle time"
#: The first jobs pay for imports and connections.
WARM_UP = 10
PAUSE = 0.02
#: After this nothing is warm any more that a steady stream of jobs keeps warm.
REST = 2.5
SHARES = {"p50": 0.5, "p99": 0.99}
# Where the time goes, by the database clock; the rest is the submit and the handler's call.
STAGES = """
    SELECT 1000 * percentile_cont(0.5) WITHIN GROUP (
               ORDER BY extract(epoch FROM a.claimed_at - t.created_at)) AS "insert to claim",
           1000 * percentile_cont(0.5) WITHIN GROUP (
               ORDER BY extract(epoch FROM a.started_at - a.claimed_at)) AS "claim to start"
      FROM tasks t
      JOIN attempts a ON a.task_id = t.id
"""


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Submit one job at a time to Overnight and to the peers, in turns."""
    peers = installed_peers(options, [CELERY, PROCRASTINATE, PGQUEUER])
    jobs = WARM_UP + (options.jobs or options.choose(20, 300))
    rested = options.choose(2, 25)
    reached: dict[tuple[str, str], list[float]] = {}
    result = BenchmarkResult()
    for number in options.rounds_to_run:
        if options.wants(US):
            waits, stages = _ours(servers, jobs, rested, options)
            _note(reached, number, waits)
            for stage, value in stages.items():
                reached.setdefault((US_INSIDE, f"{stage}, p50"), []).append(value)
        for peer in peers:
            _note(reached, number, _theirs(servers, peer, jobs, rested))
    for (who, share), values in reached.items():
        result.figure(who, share, "ms", values, "less")
    pairs = [(us, peer.name) for us in (US, US_BY_MESSAGE, US_BY_HTTP) for peer in peers]
    for (us, them), share in product([*pairs, (US_RESTED, CELERY_RESTED)], SHARES):
        if (us, share) in reached and (them, share) in reached:
            result.ratio(f"{us} / {them}, {share}", reached[us, share], reached[them, share])
    return result


def _note(
    reached: dict[tuple[str, str], list[float]], number: int, waits: dict[str, list[float]]
) -> None:
    for who, times in waits.items():
        shown = {share: percentile(times, part) for share, part in SHARES.items()}
        for share, value in shown.items():
            reached.setdefault((who, share), []).append(value)
        words = ", ".join(f"{share} {value:.1f} ms" for share, value in shown.items())
        print(f"  round {number + 1}: {who:<20} {words}", flush=True)


def _ours(
    servers: BenchmarkServers, jobs: int, rested: int, options: Options
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Measure submits by function, over HTTP, after idle time and of long tasks, by stage."""
    port = free_port()
    with fresh_deployment(servers, {**options.settings, "api_port": str(port)}) as deployment:
        user = create_user(deployment.app, name="ada", plan=PlanTier.ENTERPRISE)
        deployment.run("UPDATE users SET max_pending = 1000000")
        key = issue(deployment.app, user, name="bench")
        waker = Waker(deployment.settings.redis_url or "", deployment.settings.redis_key_prefix)
        marks = servers.marks()
        names = (*DRAINERS, "api")
        with (
            deployment.processes(*names, marks=marks),
            Client(f"http://127.0.0.1:{port}", key, retries=0) as client,
        ):
            wait_until(lambda: answers(client), what="the API", pause=0.1)

            def directly(label: int) -> None:
                submit(deployment.app, user, noop(label), NO_LIMITS)
                waker.wake()

            def by_http(label: int) -> None:
                client.tasks.create("nothing", type="noop", payload={"label": label})

            with servers.watch(US):
                direct = _waits(marks, directly, range(1, jobs + 1))
            stages = {name: float(value) for name, value in deployment.one(STAGES).items()}
            with servers.watch(US_BY_HTTP):
                http = _waits(marks, by_http, range(jobs + 1, 2 * jobs + 1))
            last = 2 * jobs
            with servers.watch(US_RESTED):
                slow = _waits(marks, directly, range(last + 1, last + rested + 1), pause=REST)
            last += rested
            with servers.watch(US_BY_MESSAGE):
                long = _waits(
                    marks,
                    directly,
                    range(last + 1, last + jobs + 1),
                    # A type without duration statistics is sent by message, as long tasks are.
                    before=lambda: deployment.run("DELETE FROM type_durations"),
                )
        waker.close()
    waits = {US: direct[WARM_UP:], US_RESTED: slow, US_BY_HTTP: http[WARM_UP:]}
    return waits | {US_BY_MESSAGE: long[WARM_UP:]}, stages


def answers(client: Client) -> bool:
    """Whether the API serves requests yet."""
    try:
        client.queue_status()
    except Unreachable:
        return False
    return True


def _waits(
    marks: Marks,
    send: Callable[[int], None],
    labels: Sequence[int],
    *,
    pause: float = PAUSE,
    before: Callable[[], object] = lambda: None,
) -> list[float]:
    submitted = {}
    for label in labels:
        before()
        time.sleep(pause)
        submitted[label] = time.monotonic()
        send(label)
        wait_for_mark(marks, label)
    return _between(submitted, marks)


def _theirs(
    servers: BenchmarkServers, peer: PeerQueue, jobs: int, rested: int
) -> dict[str, list[float]]:
    """Measure a peer as Overnight is measured; only Celery is also measured after idle time."""
    rested = rested if peer is CELERY else 0
    runner = PeerRunner(servers, peer)
    with runner.working(), servers.watch(peer.name):
        answer = runner.ask("latency", jobs=jobs, pause=PAUSE, rested=rested, rest=REST)
    waits = _between(dict(enumerate(answer["submitted"], start=1)), runner.marks)
    quiet = {peer.name: waits[WARM_UP:jobs]}
    return quiet | {CELERY_RESTED: waits[jobs:]} if rested else quiet


def _between(submitted: dict[int, float], marks: Marks) -> list[float]:
    """Return the milliseconds from each submit to its start."""
    started = {label: at for at, label in marks.read()}
    return [(started[label] - at) * 1000 for label, at in submitted.items()]
