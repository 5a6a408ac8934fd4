"""Jobs a second that a full queue gives up: 100 users with limits, 2 slots, no-op jobs."""

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.arena import Arena
from benchmarks.asked import Asked
from benchmarks.ours import DRAINERS, Ours, our_deployment
from benchmarks.outcome import Outcome
from benchmarks.rivals import USERS, Rival, Seat, present
from benchmarks.waiting import wait_for_count, wait_until

US = "overnight"
#: Fast queues get more to do, so that every round lasts about as long.
WEIGHTS = {"pgqueuer": 8.0, "dbos": 0.5}
QUICK_JOBS = 100
FULL_JOBS = 3000


class Entry(NamedTuple):
    """One way of running Overnight: its name, how many tasks it gets, and its settings."""

    name: str
    weight: float
    settings: Mapping[str, str] = MappingProxyType({})


class Dropped(Exception):
    """A contestant did not do what it was asked to, so its figure means nothing."""


def measure(asked: Asked, place: Arena) -> Outcome:
    """Drain ours and every peer that is there, in turns."""
    return contest(asked, place, [Entry(US, 4)], present(asked))


def contest(asked: Asked, place: Arena, ours: Sequence[Entry], rivals: Sequence[Rival]) -> Outcome:
    """Let us and the rivals drain the same jobs on the same servers, round by round."""
    jobs = asked.jobs or asked.choose(QUICK_JOBS, FULL_JOBS)
    rates: dict[str, list[float]] = {}
    outcome = Outcome()

    def share(weight: float) -> int:
        return round(jobs * (1 if asked.quick else weight))

    for number in asked.turns:
        for entry in ours:
            if asked.wants(entry.name):
                size = share(entry.weight)
                rate = drain_ours(place, size, {**asked.settings, **entry.settings}, who=entry.name)
                _note(rates, number, entry.name, size, rate)
        for rival in rivals:
            size = share(WEIGHTS.get(rival.name, 1))
            _note(rates, number, rival.name, size, Seat(place, rival).drain(size))
    for who, values in rates.items():
        outcome.figure(who, "drain", "jobs/s", values)
    for entry in ours:
        for rival in rivals:
            if entry.name in rates:
                outcome.ratio(f"{entry.name} / {rival.name}", rates[entry.name], rates[rival.name])
    return outcome


def _note(rates: dict[str, list[float]], number: int, who: str, jobs: int, rate: float) -> None:
    rates.setdefault(who, []).append(rate)
    print(f"  round {number + 1}: {who:<26} {rate:>9.1f} jobs/s ({jobs} jobs)", flush=True)


def drain_ours(
    place: Arena,
    jobs: int,
    changes: Mapping[str, str] | None = None,
    *,
    users: int = USERS,
    workers: int = 1,
    who: str = US,
) -> float:
    """Fill a paused deployment, open it, and return the tasks it settled a second."""
    with our_deployment(place, changes) as deployment:
        people = deployment.users(users)
        deployment.pause(paused=True)
        deployment.fill(people, jobs)
        place.settle_down(deployment.database)
        marks = place.marks()
        names = [*DRAINERS, *(f"worker-{number}" for number in range(2, workers + 1))]
        with deployment.processes(*names, marks=marks), place.watch(who):
            deployment.pause(paused=False)
            deployment.wake()
            wait_for_count(marks.count, jobs, what="runs")
            wait_until(lambda: deployment.open_tasks() == 0, what="every task to be settled")
            ended = time.monotonic()
        check_lives(deployment, jobs, marks.count())
        return jobs / (ended - marks.read()[0][0])


def check_lives(deployment: Ours, jobs: int, runs: int) -> None:
    """Make sure that every task had its whole life: one run, attempt and ledger entry.

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
        raise Dropped(f"of {jobs} tasks, {runs} runs left: {dict(seen)}")
