"""How the drain changes with the backlog, with the number of users and with the workers."""

from benchmarks.arena import Arena
from benchmarks.asked import Asked
from benchmarks.drain import drain_ours
from benchmarks.outcome import Outcome

US = "overnight"
BASE = (4_000, 100, 1)


def measure(asked: Asked, place: Arena) -> Outcome:
    """Change one thing at a time, from the same base."""
    jobs, users, workers = asked.choose((60, 10, 1), BASE)
    base = asked.jobs or jobs
    settings: dict[str, list[tuple[int, float, int]]] = {
        "backlog": [(base * times, users, workers) for times in asked.choose((1,), (1, 4, 16))],
        "users": [(base, users * times, workers) for times in asked.choose((), (0.01, 0.1, 10))],
        "workers": [(base, users, count) for count in asked.choose((), (2, 4))],
    }
    rates: dict[tuple[str, tuple[int, int, int]], list[float]] = {}
    outcome = Outcome()
    for _ in asked.turns:
        for kind, points in settings.items():
            for jobs, people, crew in points:
                point = (jobs, max(1, round(people)), crew)
                rate = drain_ours(place, point[0], asked.settings, users=point[1], workers=point[2])
                rates.setdefault((kind, point), []).append(rate)
                print(f"  {_shown(point)}: {rate:.0f} tasks/s", flush=True)
    first = next(iter(rates.values()))
    for (kind, point), values in rates.items():
        outcome.figure(US, f"{kind}: {_shown(point)}", "tasks/s", values)
        outcome.ratio(f"{_shown(point)} / base", values, first)
    return outcome


def _shown(point: tuple[int, int, int]) -> str:
    jobs, users, workers = point
    return f"{jobs:,} tasks, {users:,} users, {workers} workers"
