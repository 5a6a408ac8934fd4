"""Simulate many nights and return the distribution of start and finish times."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from random import Random
from uuid import UUID

from overnight_server.forecast.durations import ObservedDurations
from overnight_server.forecast.simulation import RunInterval, Simulation, Snapshot

# More nights do not make the quantiles more accurate; fewer make them jump.
NIGHTS = 50
FEWEST_NIGHTS = 12
# After this many simulated starts no further night is simulated, and a single night is cut off
# after MAX_STARTS_PER_NIGHT. A start takes about ten microseconds.
ENOUGH_STARTS = 60_000
MAX_STARTS_PER_NIGHT = 15_000


@dataclass(frozen=True)
class Distribution:
    """Start and finish times of each task in every simulated night, in seconds from now.

    Infinity stands for a night in which the task did not start. `is_cut` says that a night was cut
    off.
    """

    starts: Mapping[UUID, Sequence[float]]
    finishes: Mapping[UUID, Sequence[float]]
    nights: int
    is_cut: bool

    def start(self, task: UUID, share: float) -> float | None:
        """Return by when the task has started in this share of the nights, in seconds from now."""
        return quantile(self.starts[task], share)

    def finish(self, task: UUID, share: float) -> float | None:
        """Return by when the task's run has ended in this share of the nights."""
        return quantile(self.finishes[task], share)

    def last_finish(self, share: float) -> float | None:
        """Return by when all of the tasks have ended in this share of the nights."""
        lasts = [max(finishes) for finishes in zip(*self.finishes.values(), strict=True)]
        return quantile(lasts, share)

    def finished_by(self, moment: float, share: float) -> int:
        """Return how many tasks, at least, end by a moment in this share of the nights."""
        counts = sorted(
            sum(finishes[night] <= moment for finishes in self.finishes.values())
            for night in range(self.nights)
        )
        return counts[int((1 - share) * (len(counts) - 1))]


#: Simulates a snapshot with observed durations until these tasks have started.
Simulate = Callable[[Snapshot, ObservedDurations, Collection[UUID]], Distribution]


def simulate_nights(
    snapshot: Snapshot,
    observed: ObservedDurations,
    tasks: Collection[UUID],
    *,
    nights: int = NIGHTS,
) -> Distribution:
    """Simulate many nights for these tasks; the same snapshot always gives the same result."""
    simulation = Simulation(snapshot)
    random = Random(0)  # noqa: S311 - draws durations, not secrets
    simulated: list[Mapping[UUID, RunInterval]] = []
    starts, is_cut = 0, False
    while len(simulated) < nights and (len(simulated) < FEWEST_NIGHTS or starts < ENOUGH_STARTS):
        night = simulation.simulate_night(
            observed.sample(random), tasks, max_starts=MAX_STARTS_PER_NIGHT
        )
        simulated.append(night.intervals)
        starts += night.starts
        is_cut = is_cut or night.is_cut
    never = RunInterval(inf, inf)
    return Distribution(
        starts={task: [night.get(task, never).start for night in simulated] for task in tasks},
        finishes={task: [night.get(task, never).finish for night in simulated] for task in tasks},
        nights=len(simulated),
        is_cut=is_cut,
    )


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which a new one lies with this probability, None if it is infinite.

    A new value falls with equal probability into each of the n + 1 gaps around n known values.

    >>> quantile([1.0, 2.0, 3.0], 0.5)
    2.0
    """
    ranked = sorted(values)
    position = min(max(share * (len(ranked) + 1) - 1, 0.0), len(ranked) - 1.0)
    low, high = ranked[int(position)], ranked[ceil(position)]
    if high == inf:
        return None
    return low + (high - low) * (position - int(position))
