"""Run durations: samples drawn from observed runs, wider the fewer runs were observed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from random import Random
from typing import Protocol

# Runs of one night differ from earlier ones together: all durations of a sample are scaled by one
# random factor with this standard deviation, and those of a type with n observed runs by another
# one with the standard deviation UNCERTAINTY / √n.
NIGHTLY_DRIFT = 0.12
UNCERTAINTY = 0.5


class DurationSample(Protocol):
    """The durations of runs in one simulated night."""

    def duration(self, type_: str, granted: float) -> float:
        """Return the seconds that a run of this type takes, at most `granted`."""

    def remaining(self, type_: str, granted: float, elapsed: float) -> float:
        """Return how many seconds longer a run takes that began `elapsed` seconds ago."""


@dataclass(frozen=True)
class ObservedDurations:
    """The durations of recent runs in seconds, by type of task."""

    recent: Mapping[str, Sequence[float]]

    def has_runs_of(self, type_: str) -> bool:
        """Return whether any run of this type was observed."""
        return bool(self.recent.get(type_))

    def sample(self, random: Random) -> "DrawnDurations":
        """Draw the durations of one simulated night.

        The observed runs are themselves a random sample. Drawing from them directly would be too
        certain of their mean, and that error adds up along a queue. So each simulated night first
        draws its own set of durations from the observed ones, with replacement.
        """
        drift = exp(random.gauss(0, NIGHTLY_DRIFT))
        drawn = {}
        for type_, observed in self.recent.items():
            if observed:
                factor = drift * exp(random.gauss(0, UNCERTAINTY / sqrt(len(observed))))
                chosen = random.choices(observed, k=len(observed))
                drawn[type_] = [seconds * factor for seconds in chosen]
        return DrawnDurations(drawn, random)


class DrawnDurations:
    """Draws each run's duration from a set; a type without observed runs takes all its time."""

    def __init__(self, drawn: Mapping[str, Sequence[float]], random: Random) -> None:
        self._drawn = drawn
        self._random = random.random

    def duration(self, type_: str, granted: float) -> float:
        """Return the seconds that a run of this type takes, at most `granted`."""
        durations = self._drawn.get(type_)
        if durations is None:
            return granted
        return min(granted, durations[int(self._random() * len(durations))])

    def remaining(self, type_: str, granted: float, elapsed: float) -> float:
        """Return how many seconds longer a run takes that began `elapsed` seconds ago."""
        left = max(0.0, granted - elapsed)
        durations = self._drawn.get(type_)
        if durations is None:
            return left
        longer = [seconds for seconds in durations if seconds > elapsed]
        if not longer:
            # The run has already taken longer than every observed run. Assume that it needs
            # between 0 seconds and as long as it has taken so far.
            return min(left, elapsed * self._random())
        return min(left, longer[int(self._random() * len(longer))] - elapsed)
