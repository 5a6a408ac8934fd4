"""What it costs the drain to record what the history of tasks and nights is told from.

Recorded are the changes of lanes in `lane_history`, by the trigger that also records holds, and two
indexes find the runs and the ends of a period. The drain without them has the same rows but those.
"""

import statistics

from benchmarks.drain import FULL_JOBS, QUICK_JOBS, US, drain_ours
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers

WITHOUT = "overnight without the history"
SHARE = "share of the drain that the history takes"
REMOVE = (
    "DROP INDEX attempts_user",
    "DROP INDEX tasks_ended",
    "DROP TRIGGER lanes_record_hold ON lanes",
    (
        "CREATE TRIGGER lanes_record_hold AFTER UPDATE ON lanes FOR EACH ROW"
        " WHEN (NEW.held_by IS DISTINCT FROM OLD.held_by) EXECUTE FUNCTION record_lane_hold()"
    ),
)


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Drain with and without the history, in turns; every second round the other one begins."""
    jobs = options.jobs or options.choose(QUICK_JOBS, 4 * FULL_JOBS)
    rates: dict[str, list[float]] = {US: [], WITHOUT: []}
    for number in options.rounds_to_run:
        turns = [US, WITHOUT] if number % 2 == 0 else [WITHOUT, US]
        for who in turns:
            removed = REMOVE if who == WITHOUT else ()
            rate = drain_ours(servers, jobs, options.settings, who=who, changed_by=removed)
            rates[who].append(rate)
            print(f"  round {number + 1}: {who:<30} {rate:>9.1f} jobs/s", flush=True)
    result = BenchmarkResult()
    for who, values in rates.items():
        result.figure(who, "drain", "jobs/s", values)
    result.ratio(f"{US} / {WITHOUT}", rates[US], rates[WITHOUT])
    result.rounds[SHARE] = [
        1 - with_it / without for with_it, without in zip(rates[US], rates[WITHOUT], strict=True)
    ]
    result.ratios[SHARE] = statistics.median(result.rounds[SHARE])
    return result
