"""How the drain changes with the backlog, with the number of users and with the workers."""

from benchmarks.drain import drain_ours
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers

US = "overnight"
BASE = (4_000, 100, 1)


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Change one thing at a time, from the same base."""
    jobs, users, workers = options.choose((60, 10, 1), BASE)
    base = options.jobs or jobs
    settings: dict[str, list[tuple[int, float, int]]] = {
        "backlog": [(base * times, users, workers) for times in options.choose((1,), (1, 4, 16))],
        "users": [(base, users * times, workers) for times in options.choose((), (0.01, 0.1, 10))],
        "workers": [(base, users, count) for count in options.choose((), (2, 4))],
    }
    rates: dict[tuple[str, tuple[int, int, int]], list[float]] = {}
    result = BenchmarkResult()
    for _ in options.rounds_to_run:
        for kind, points in settings.items():
            for jobs, people, crew in points:
                point = (jobs, max(1, round(people)), crew)
                rate = drain_ours(
                    servers, point[0], options.settings, users=point[1], workers=point[2]
                )
                rates.setdefault((kind, point), []).append(rate)
                print(f"  {_shown(point)}: {rate:.0f} tasks/s", flush=True)
    first = next(iter(rates.values()))
    for (kind, point), values in rates.items():
        result.figure(US, f"{kind}: {_shown(point)}", "tasks/s", values)
        result.ratio(f"{_shown(point)} / base", values, first)
    return result


def _shown(point: tuple[int, int, int]) -> str:
    jobs, users, workers = point
    return f"{jobs:,} tasks, {users:,} users, {workers} workers"
