"""Runs settled a second, one at a time and in batches, from 1 and from 4 processes."""

from collections.abc import Sequence

from benchmarks.arena import Arena
from benchmarks.asked import Asked
from benchmarks.clocking import Crew, as_dispatcher
from benchmarks.ours import our_deployment
from benchmarks.outcome import Outcome
from benchmarks.running import batched, begin, open_wide, settle_batches

US = "overnight"
BATCHES = (1, 10, 100)
CREWS = (1, 4)
USERS = 100


def measure(asked: Asked, place: Arena) -> Outcome:
    """Settle fresh runs of many users with every batch size and crew, in turns."""
    runs_for = dict(zip(BATCHES, asked.choose((40, 200, 800), (800, 4_000, 8_000)), strict=True))
    crews: Sequence[int] = asked.choose(CREWS[:1], CREWS)
    rates: dict[tuple[int, int], list[float]] = {}
    outcome = Outcome()
    with our_deployment(place) as deployment:
        users = deployment.users(USERS)
        open_wide(deployment, users, slots=max(runs_for.values()))
        for size in crews:
            with Crew(as_dispatcher, deployment.url, size) as crew:
                for _ in asked.turns:
                    for batch, count in runs_for.items():
                        deployment.fill(users, count)
                        work = batched(begin(deployment), batch)
                        with place.watch(US):
                            seconds = crew.seconds(settle_batches, work)
                        rates.setdefault((size, batch), []).append(count / seconds)
    for (size, batch), values in rates.items():
        outcome.figure(US, f"batches of {batch}, {size} processes", "settles/s", values)
    for size in crews:
        for batch in BATCHES[1:]:
            name = f"batches of {batch} / single, {size} processes"
            outcome.ratio(name, rates[size, batch], rates[size, 1])
    return outcome
