"""Claims per second at 1k to 1M ready tasks of 10,000 users, one of whom has 30 % of them.

One claimer is timed in its claims alone, and gives back after each; four at once are timed as a
whole, and give back afterwards.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import NamedTuple

from benchmarks import parallel_claims, plain_claim
from benchmarks.bulk_rows import FilledDatabase
from benchmarks.call_times import ProcessGroup, Stopwatch, connect_as_dispatcher
from benchmarks.deployment import BenchmarkDeployment, fresh_deployment
from benchmarks.options import Options
from benchmarks.parallel_claims import CLAIMERS
from benchmarks.plain_claim import PlainQueue
from benchmarks.results import BenchmarkResult
from benchmarks.servers import BenchmarkServers
from overnight_server.gate.claim import CLAIMS_PER_PASS, ClaimSettings, claim
from overnight_server.outcome.presence import WorkerDescription, join
from overnight_server.outcome.settle import release

US = "overnight"
PLAIN = "plain claim"
SIZES = {1_000: "1k", 10_000: "10k", 100_000: "100k", 1_000_000: "1M"}
#: The last is what a dispatcher takes in one pass.
BATCHES = (1, 10, 100, CLAIMS_PER_PASS)
USERS = 10_000
#: Twice the largest claim: a pool is never full, and no larger than a real one.
SLOTS = 2 * CLAIMS_PER_PASS
POOL = "default"
FOREVER = timedelta(days=365)


class Way(NamedTuple):
    """One case: who claims, of how many ready tasks, how many at once, by how many claimers."""

    who: str
    size: int
    batch: int
    claimers: int = 1

    @property
    def crowd(self) -> str:
        """The number of claimers as text; empty for a single one."""
        return f", {self.claimers} claimers" if self.claimers > 1 else ""

    def __str__(self) -> str:
        return f"{SIZES[self.size]} ready{self.crowd}, claims of {self.batch}"


Rates = Mapping[Way, Sequence[float]]


def measure(options: Options, servers: BenchmarkServers) -> BenchmarkResult:
    """Measure Overnight and the plain claim at each size; the tables grow from size to size."""
    sizes: Sequence[int] = options.choose([1_000, 10_000], list(SIZES))
    users = options.choose(1_000, USERS)
    passes = options.choose(5, 30)
    rates: defaultdict[Way, list[float]] = defaultdict(list)
    result = BenchmarkResult()
    with (
        fresh_deployment(servers) as deployment,
        closing(PlainQueue(servers, users)) as plain,
        ProcessGroup(connect_as_dispatcher, deployment.url, CLAIMERS) as ours_at_once,
        ProcessGroup(plain_claim.connect, plain.url, CLAIMERS) as plain_at_once,
    ):
        join(deployment.dispatcher, WorkerDescription("bench", POOL, (), SLOTS))
        parallel_claims.make_pools(deployment)
        database = FilledDatabase(deployment, users)
        for size in sizes:
            database.fill_up(size)
            plain.fill_up(size)
            for _ in options.rounds_to_run:
                with servers.watch(US):
                    for batch in BATCHES:
                        rates[Way(US, size, batch)].append(claim_ours(deployment, batch, passes))
                with servers.watch(PLAIN):
                    rates[Way(PLAIN, size, 1)].append(claim_plain(plain, passes))
                if size < parallel_claims.ENOUGH:
                    continue
                with servers.watch(f"{US}, {CLAIMERS} claimers"):
                    rate = parallel_claims.claim_ours(deployment, ours_at_once, passes)
                    rates[Way(US, size, BATCHES[-1], CLAIMERS)].append(rate)
                with servers.watch(f"{PLAIN}, {CLAIMERS} claimers"):
                    rate = parallel_claims.claim_plain(plain, plain_at_once, passes)
                    rates[Way(PLAIN, size, 1, CLAIMERS)].append(rate)
            _say(size, rates)
    for way, values in rates.items():
        result.figure(way.who, str(way), "claims/s", values)
    _compare(result, rates, max(sizes))
    return result


def claim_ours(deployment: BenchmarkDeployment, batch: int, passes: int) -> float:
    """Claim and release, and time only the claims; return the tasks claimed in a second."""
    watch = Stopwatch()
    for _ in range(passes):
        with watch.running():
            taken = claim(
                deployment.dispatcher,
                POOL,
                holder="bench",
                claim_settings=ClaimSettings(FOREVER, FOREVER),
                limit=batch,
            )
        watch.done += len(taken.claims)
        release(deployment.dispatcher, taken.claims, reason="bench")
    return watch.rate


def claim_plain(plain: PlainQueue, passes: int) -> float:
    """Do the same with the plain claim."""
    watch = Stopwatch()
    for _ in range(passes):
        with watch.running():
            task = plain.claim()
        if task is not None:
            watch.done += 1
            plain.give_back([task])
    return watch.rate


def _compare(result: BenchmarkResult, rates: Rates, largest: int) -> None:
    best, single = BATCHES[-1], BATCHES[0]
    for crew in (1, CLAIMERS):
        for size, shown in SIZES.items():
            ours, plain = Way(US, size, best, crew), Way(PLAIN, size, 1, crew)
            if ours in rates:
                name = f"{US} / {PLAIN} at {shown} ready{ours.crowd}"
                result.ratio(name, rates[ours], rates[plain])
    if largest == max(SIZES):
        for batch in BATCHES:
            name = f"1M / 10k ready, claims of {batch}"
            result.ratio(name, rates[Way(US, largest, batch)], rates[Way(US, 10_000, batch)])
    result.ratio(
        f"{US} claims of {single} / {PLAIN} at {SIZES[largest]} ready",
        rates[Way(US, largest, single)],
        rates[Way(PLAIN, largest, 1)],
    )


def _say(size: int, rates: Rates) -> None:
    last = [
        f"{way.who}{way.crowd} {way.batch}: {values[-1]:.0f}"
        for way, values in rates.items()
        if way.size == size
    ]
    print(f"  {SIZES[size]:>4} ready, claims/s: {', '.join(last)}", flush=True)
