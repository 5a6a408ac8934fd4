"""Claims a second at 1k to 1M ready tasks of 10,000 users, one of whom owns 30 %."""

from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta

from app.gate.claim import CLAIMS_PER_PASS, Terms, claim
from app.outcome.presence import AgentCard, join
from app.outcome.settle import release
from benchmarks.arena import Arena
from benchmarks.asked import Asked
from benchmarks.clocking import Stopwatch
from benchmarks.filling import Warehouse
from benchmarks.ours import Ours, our_house
from benchmarks.outcome import Outcome
from benchmarks.plain_claim import PlainQueue

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


def measure(asked: Asked, place: Arena) -> Outcome:
    """Measure ours and the base line at each size, each size on the same grown tables."""
    sizes: Sequence[int] = asked.choose([1_000], list(SIZES))
    users = asked.choose(100, USERS)
    passes = asked.choose(5, 30)
    rounds = asked.rounds_or(2)
    rates: dict[tuple[str, int, int], list[float]] = {}
    outcome = Outcome()
    with our_house(place) as house, closing(PlainQueue(place, users)) as plain:
        join(house.dispatcher, AgentCard("bench", POOL, (), SLOTS))
        warehouse = Warehouse(house, users)
        for size in sizes:
            warehouse.fill_up(size)
            plain.fill_up(size)
            for _ in range(rounds):
                with place.watch(US):
                    for batch in BATCHES:
                        rate = claim_ours(house, batch, passes)
                        rates.setdefault((US, size, batch), []).append(rate)
                with place.watch(PLAIN):
                    rates.setdefault((PLAIN, size, 1), []).append(claim_plain(plain, passes))
            _say(size, rates)
    for (who, size, batch), values in rates.items():
        outcome.figure(who, f"{SIZES[size]} ready, claims of {batch}", "claims/s", values)
    _compare(outcome, rates, max(sizes))
    return outcome


def claim_ours(house: Ours, batch: int, passes: int) -> float:
    """Claim and give back, timing only the claims; return the tasks claimed a second."""
    watch = Stopwatch()
    for _ in range(passes):
        with watch.running():
            taken = claim(
                house.dispatcher,
                POOL,
                holder="bench",
                terms=Terms(FOREVER, FOREVER),
                limit=batch,
            )
        watch.done += len(taken.claims)
        release(house.dispatcher, taken.claims, reason="bench")
    return watch.rate


def claim_plain(plain: PlainQueue, passes: int) -> float:
    """Do the same with the base line."""
    watch = Stopwatch()
    for _ in range(passes):
        with watch.running():
            task = plain.claim()
        if task is not None:
            watch.done += 1
            plain.give_back(task)
    return watch.rate


def _compare(
    outcome: Outcome, rates: dict[tuple[str, int, int], list[float]], largest: int
) -> None:
    best, single = BATCHES[-1], BATCHES[0]
    for size, shown in SIZES.items():
        if (US, size, best) in rates:
            ours, plain = rates[US, size, best], rates[PLAIN, size, 1]
            outcome.ratio(f"{US} / {PLAIN} at {shown} ready", ours, plain)
    if largest == max(SIZES):
        for batch in BATCHES:
            name = f"1M / 10k ready, claims of {batch}"
            outcome.ratio(name, rates[US, largest, batch], rates[US, 10_000, batch])
    outcome.ratio(
        f"{US} claims of {single} / {PLAIN} at {SIZES[largest]} ready",
        rates[US, largest, single],
        rates[PLAIN, largest, 1],
    )


def _say(size: int, rates: dict[tuple[str, int, int], list[float]]) -> None:
    last = [
        f"{who} {batch}: {values[-1]:.0f}"
        for (who, at, batch), values in rates.items()
        if at == size
    ]
    print(f"  {SIZES[size]:>4} ready, claims/s: {', '.join(last)}", flush=True)
