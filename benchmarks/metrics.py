"""What a scrape of /metrics costs at 10,000 and at 1M ready tasks, and what counting costs."""

import statistics
from datetime import timedelta

from benchmarks.bulk_rows import FilledDatabase
from benchmarks.call_times import Stopwatch
from benchmarks.deployment import BenchmarkDeployment, fresh_deployment
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers
from overnight_server.api.http.exposition import expose
from overnight_server.maintenance.queue_metrics import count_new_events
from overnight_server.outcome.presence import WorkerDescription, join
from overnight_server.store.db import APP, Db

US = "overnight"
SMALL, LARGE = 10_000, 1_000_000
POOL = "default"
SLOTS = 200
SCRAPE_EVERY = timedelta(seconds=5)
GROWTH = "scrape at a million ready tasks / at 10,000"
SHARE = "a scrape every 5 s, % of one core"


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Scrape at both sizes of one database that grows; then count the events of new tasks."""
    sizes = options.choose((1_000, SMALL), (SMALL, LARGE))
    users = options.choose(1_000, 10_000)
    times: dict[int, list[float]] = {size: [] for size in sizes}
    rates: list[float] = []
    with fresh_deployment(servers) as deployment:
        join(deployment.dispatcher, WorkerDescription("bench", POOL, (), SLOTS))
        database = FilledDatabase(deployment, users)
        api = Db.connect(deployment.url, role=APP, application_name="overnight-api")
        for size in sizes:
            database.fill_up(size)
            for _ in options.rounds_to_run:
                with servers.watch(US):
                    times[size].append(_scrape_ms(deployment, api, options.choose(5, 50)))
        for _ in options.rounds_to_run:
            with servers.watch(US):
                rates.append(_counts_per_second(deployment, options.choose(500, 50_000)))
        api.close()
    result = BenchmarkResult()
    small, large = (times[size] for size in sizes)
    for size, each in times.items():
        result.figure(US, f"scrape, {size:,} ready", "ms", each, "less")
    result.figure(US, "events counted by the sweep", "events/s", rates)
    result.ratio(GROWTH, large, small)
    result.rounds[SHARE] = [100 * each / 1000 / SCRAPE_EVERY.total_seconds() for each in large]
    result.ratios[SHARE] = statistics.median(result.rounds[SHARE])
    return result


def _scrape_ms(deployment: BenchmarkDeployment, api: Db, scrapes: int) -> float:
    """Return the median time of a scrape, as the API answers it."""
    expose(api, deployment.settings)
    watch = Stopwatch()
    for _ in range(scrapes):
        with watch.running():
            expose(api, deployment.settings)
    return 1000 * statistics.median(watch.seconds)


def _counts_per_second(deployment: BenchmarkDeployment, tasks: int) -> float:
    """Submit tasks, and return how many events the sweep counts in a second."""
    [user] = [row["id"] for row in deployment.rows("SELECT id FROM users ORDER BY id LIMIT 1")]
    deployment.fill([user], tasks)
    watch = Stopwatch()
    with watch.running():
        watch.done += count_new_events(deployment.dispatcher, counts_all=True)
    return watch.rate
