"""How long runs may take: nights drawn from what was observed, wider the less is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from random import Random
from typing import Protocol

# Tonight's runs are never quite like those before: all of a night's runs are this much slower or
# faster together (one standard deviation), and a type that was seen n times by DOUBT / √n more.
NIGHTLY_DRIFT = 0.12
DOUBT = 0.5


class Night(Protocol):
    """One possible night: how long each run would take in it."""

    def run(self, type_: str, granted: float) -> float:
        """Return how long a run of this type takes; never more than it was granted."""

    def rest(self, type_: str, granted: float, elapsed: float) -> float:
        """Return how much longer a run takes that has been going for `elapsed` seconds."""


@dataclass(frozen=True)
class Observed:
    """The durations of recent runs, in seconds, by type; the source of nights."""

    recent: Mapping[str, Sequence[float]]

    def knows(self, type_: str) -> bool:
        """Whether any run of this type has been seen."""
        return bool(self.recent.get(type_))

    def night(self, random: Random) -> "DrawnNight":
        """Draw a night.

        The history is itself only a sample of what could have happened. Drawing from it
        directly would be too sure of its mean, and the mistake adds up along a queue; so each
        night first draws a history of its own out of the one that was seen.
        """
        drift = exp(random.gauss(0, NIGHTLY_DRIFT))
        drawn = {}
        for type_, seen in self.recent.items():
            if seen:
                pace = drift * exp(random.gauss(0, DOUBT / sqrt(len(seen))))
                drawn[type_] = [seconds * pace for seconds in random.choices(seen, k=len(seen))]
        return DrawnNight(drawn, random)


class DrawnNight:
    """A night whose runs are drawn one by one; a type never seen takes all it is granted."""

    def __init__(self, drawn: Mapping[str, Sequence[float]], random: Random) -> None:
        self._drawn = drawn
        self._random = random.random

    def run(self, type_: str, granted: float) -> float:
        """Return how long a run of this type takes; never more than it was granted."""
        known = self._drawn.get(type_)
        if known is None:
            return granted
        seconds = known[int(self._random() * len(known))]
        return min(granted, seconds)

    def rest(self, type_: str, granted: float, elapsed: float) -> float:
        """Return how much longer a run takes that has been going for `elapsed` seconds."""
        left = max(0.0, granted - elapsed)
        known = self._drawn.get(type_)
        if known is None:
            return left
        longer = [seconds for seconds in known if seconds > elapsed]
        if not longer:
            # It has outlived all we know of: it may end at once, or go on as long again.
            return min(left, elapsed * self._random())
        return min(left, longer[int(self._random() * len(longer))] - elapsed)
