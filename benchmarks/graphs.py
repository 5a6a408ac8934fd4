"""What graphs cost: 10,000 tasks let in at once, 1 → 10,000 → 1, and a chain of 1,000."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.arena import Arena
from benchmarks.asked import Asked
from benchmarks.clocking import Crew, Stopwatch, as_dispatcher
from benchmarks.ours import DRAINERS, ROOMY, Ours, noop, our_deployment
from benchmarks.outcome import Outcome
from benchmarks.running import batched, begin, open_wide, settle_batch, settle_batches
from benchmarks.waiting import wait_for_count, wait_until
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


def measure(asked: Asked, place: Arena) -> Outcome:
    """Measure letting in, release, fan-in, all of them in a row, and a chain."""
    size = asked.choose(200, 10_000)
    steps = asked.choose(10, 1_000)
    outcome = Outcome()
    creations(place, outcome, size, asked.turns)
    releases(place, outcome, size, asked.turns)
    fan_ins(place, outcome, size, asked)
    fans(place, outcome, size, asked.turns)
    chain(place, outcome, steps, asked)
    return outcome


@contextmanager
def one_user(place: Arena, slots: int) -> Iterator[tuple[Ours, UserId]]:
    """Make a deployment with one user, whose room is endless."""
    with our_deployment(place) as deployment:
        [user] = deployment.users(1)
        open_wide(deployment, [user], slots)
        yield deployment, user


def creations(place: Arena, outcome: Outcome, size: int, turns: range) -> None:
    """Time the submit of one graph of `size` tasks, and of as many that have nothing in common."""
    graphs: list[float] = []
    lone: list[float] = []
    watch = Stopwatch()
    for _ in turns:
        for edges, found in ((_fan(size), graphs), ([], lone)):
            with one_user(place, slots=2) as (deployment, user), place.watch(US):
                tasks = [noop() for _ in range(size)]
                with watch.running():
                    submit_graph(deployment.app, user, tasks, ROOMY, edges=edges)
                found.append(watch.last_ms)
    outcome.figure(US, f"one graph of {size:,} tasks let in", "ms", graphs, "less")
    outcome.figure(US, f"{size:,} lone tasks let in", "ms", lone, "less")
    outcome.ratio("graph / lone tasks, time to let in", graphs, lone)


def fans(place: Arena, outcome: Outcome, size: int, turns: range) -> None:
    """Run 1 → many → 1 from its first claim to its last settling, without Celery."""
    rates = []
    for _ in turns:
        with one_user(place, slots=size) as (deployment, user):
            tasks = [noop() for _ in range(size)]
            submit_graph(deployment.app, user, tasks, ROOMY, edges=_fan(size))
            place.settle_down(deployment.database)
            began, done = time.perf_counter(), 0
            with place.watch(US):
                while runs := begin(deployment):
                    for batch in batched(runs, BATCHES[-1]):
                        settle_batch(deployment.dispatcher, batch)
                    done += len(runs)
            if done != size:
                raise AssertionError(f"{done} of {size} tasks of the graph ran")
            rates.append(done / (time.perf_counter() - began))
    outcome.figure(US, f"1 → {size - 2:,} → 1, claim to settled", "tasks/s", rates)


def _fan(size: int) -> list[Edge]:
    middle = range(1, size - 1)
    return [edge for one in middle for edge in (Edge(0, one), Edge(one, size - 1))]


def releases(place: Arena, outcome: Outcome, size: int, turns: range) -> None:
    """Time the settling of one parent whose dependents all become ready, and a plain UPDATE."""
    ours, plain, watch = [], [], Stopwatch()
    for _ in turns:
        with one_user(place, slots=2) as (deployment, user):
            tasks = [noop() for _ in range(size + 1)]
            edges = [Edge(0, child) for child in range(1, size + 1)]
            submit_graph(deployment.app, user, tasks, ROOMY, edges=edges)
            deployment.run(PLAIN_ROWS)
            place.settle_down(deployment.database)
            [parent] = begin(deployment)
            with place.watch("plain UPDATE"):
                with watch.running():
                    deployment.run(PLAIN_UPDATE)
                plain.append(watch.last_ms)
            with place.watch(US):
                with watch.running():
                    settle_batch(deployment.dispatcher, [parent])
                ours.append(watch.last_ms)
    outcome.figure(US, f"release of {size:,} dependents", "ms", ours, "less")
    outcome.figure("plain UPDATE", f"of {size:,} rows", "ms", plain, "less")
    outcome.ratio("release / plain UPDATE, time", ours, plain)


def fan_ins(place: Arena, outcome: Outcome, size: int, asked: Asked) -> None:
    """Settle many parents of one child from several processes, and as many tasks without one."""
    rates: dict[tuple[str, int], list[float]] = {}
    batches = asked.choose(BATCHES[-1:], BATCHES)
    workers = asked.choose(2, WORKERS)
    for _ in asked.turns:
        for batch in batches:
            count = min(size, 2_000) if batch == 1 else size
            for kind in ("independent", "fan-in"):
                rate = _fan_in(place, count, batch, workers, joined=kind == "fan-in")
                rates.setdefault((kind, batch), []).append(rate)
    for (kind, batch), values in rates.items():
        outcome.figure(US, f"{kind}, {workers} workers, batches of {batch}", "settles/s", values)
    for batch in batches:
        name = "fan-in / independent, rate" if batch > 1 else "fan-in / independent, single settles"
        outcome.ratio(name, rates["fan-in", batch], rates["independent", batch])


def _fan_in(place: Arena, count: int, batch: int, workers: int, *, joined: bool) -> float:
    with one_user(place, slots=count) as (deployment, user):
        tasks = [noop() for _ in range(count + joined)]
        edges = [Edge(parent, count) for parent in range(count)] if joined else []
        submit_graph(deployment.app, user, tasks, ROOMY, edges=edges)
        place.settle_down(deployment.database)
        work = batched(begin(deployment), batch)
        with Crew(as_dispatcher, deployment.url, workers) as crew, place.watch(US):
            seconds = crew.seconds(settle_batches, work)
        if joined and len(begin(deployment)) != 1:
            raise AssertionError("the child of a fan-in was not released")
    return count / seconds


def chain(place: Arena, outcome: Outcome, steps: int, asked: Asked) -> None:
    """Walk down a chain: by hand without Celery, then with the whole stack."""
    by_hand, through_stack = [], []
    for _ in asked.turns:
        with one_user(place, slots=2) as (deployment, user):
            _submit_chain(deployment, user, steps)
            began = time.perf_counter()
            for _step in range(steps):
                [run] = begin(deployment, 1)
                settle_batch(deployment.dispatcher, [run])
            by_hand.append((time.perf_counter() - began) * 1000 / steps)
        through_stack.append(_chain_through_stack(place, steps, asked))
    outcome.figure(US, "chain without Celery, per step", "ms", by_hand, "less")
    outcome.figure(US, "chain through the stack, per step", "ms", through_stack, "less")


def _chain_through_stack(place: Arena, steps: int, asked: Asked) -> float:
    with our_deployment(place, asked.settings) as deployment:
        [user] = deployment.users(1)
        marks = place.marks()
        with deployment.processes(*DRAINERS, marks=marks), place.watch(US):
            _submit_chain(deployment, user, steps)
            deployment.wake()
            wait_for_count(marks.count, steps, what="steps of the chain")
            wait_until(lambda: deployment.open_tasks() == 0, what="its last settling")
        times = [at for at, _ in marks.read()]
    return (times[-1] - times[0]) * 1000 / (steps - 1)


def _submit_chain(deployment: Ours, user: UserId, steps: int) -> None:
    edges = [Edge(step, step + 1) for step in range(steps - 1)]
    submit_graph(deployment.app, user, [noop() for _ in range(steps)], ROOMY, edges=edges)
