"""Many rehearsals of the same deployment, and what they have in common: a forecast with a band."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from random import Random
from uuid import UUID

from overnight_server.forecast.durations import Observed
from overnight_server.forecast.simulation import Simulation, Span

# More nights make the band no truer; fewer make it ragged.
NIGHTS = 50
FEWEST_NIGHTS = 12
# Starts in all nights together, after which no further night is begun, and in one night.
# A start takes about ten microseconds.
ENOUGH_STARTS = 60_000
MOST_STARTS = 15_000


@dataclass(frozen=True)
class Outlook:
    """What the nights brought for each of the asked tasks; infinity is a night without a start."""

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
        lasts = [max(of_one_night) for of_one_night in zip(*self.finishes.values(), strict=True)]
        return quantile(lasts, share)

    def finished_by(self, moment: float, share: float) -> int:
        """Return how many of the tasks, or more, end by a moment in this share of the nights."""
        counts = sorted(
            sum(spans[night] <= moment for spans in self.finishes.values())
            for night in range(self.nights)
        )
        return counts[int((1 - share) * (len(counts) - 1))]


def foresee(
    rehearsal: Simulation, history: Observed, asked: Collection[UUID], *, nights: int = NIGHTS
) -> Outlook:
    """Rehearse the asked tasks in many nights; the same deployment always gets the same answer."""
    random = Random(0)  # noqa: S311 - draws durations, not secrets
    spans: list[Mapping[UUID, Span]] = []
    starts, is_cut = 0, False
    while len(spans) < nights and (len(spans) < FEWEST_NIGHTS or starts < ENOUGH_STARTS):
        played = rehearsal.play(history.night(random), asked, most=MOST_STARTS)
        spans.append(played.spans)
        starts += played.starts
        is_cut = is_cut or played.is_cut
    never = Span(inf, inf)
    return Outlook(
        starts={task: [one.get(task, never).start for one in spans] for task in asked},
        finishes={task: [one.get(task, never).finish for one in spans] for task in asked},
        nights=len(spans),
        is_cut=is_cut,
    )


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value that a new one stays below with this chance, or None if there is none.

    A new value is as likely to fall into any of the gaps between n known ones, those before
    the first and after the last included: hence n + 1.

    >>> quantile([1.0, 2.0, 3.0], 0.5)
    2.0
    """
    ranked = sorted(values)
    place = min(max(share * (len(ranked) + 1) - 1, 0.0), len(ranked) - 1.0)
    low, high = ranked[int(place)], ranked[ceil(place)]
    if high == inf:
        return None
    return low + (high - low) * (place - int(place))
