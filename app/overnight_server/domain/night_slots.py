"""The slots of a plan in a night: which run held each, and why each was empty when it was.

Work and idle time together are the plan's slots times the open window. When fewer tasks ran than
the plan allows, each empty slot has the cause of one waiting task: the first empty slot that of
the task that was nearest to its start, the next slot that of the next task. A slot for which no
task is left was empty because nothing was queued.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import pairwise
from typing import Generic, TypeVar

from overnight_server.domain.life import NARROWNESS, Segment, SegmentKind, clip
from overnight_server.domain.life_words import NOTHING_QUEUED, UNKNOWN

R = TypeVar("R")
Period = tuple[datetime, datetime]

# Codes from the widest to the narrowest: the wider the narrowest reason of a task is, the nearer
# the task was to its start.
_NEARNESS = {code.value: place for place, (_, code) in enumerate(reversed(NARROWNESS))}


@dataclass(frozen=True)
class SlotTime(Generic[R]):
    """A part of a slot's night; `run` is None if the slot was empty, for the cause `code`."""

    since: datetime
    until: datetime
    run: R | None = None
    code: str = ""

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.until - self.since).total_seconds()


class WaitingTasks:
    """Which tasks waited when, and for what."""

    def __init__(
        self, lives: Iterable[Sequence[Segment]], since: datetime, until: datetime
    ) -> None:
        changes: list[tuple[datetime, str, int]] = []
        for segments in lives:
            for segment in segments:
                if segment.kind is not SegmentKind.WAITING:
                    continue
                for begin, end in clip([(segment.since, segment.until)], since, until):
                    changes += [(begin, segment.code.value, 1), (end, segment.code.value, -1)]
        changes.sort(key=lambda change: change[0])
        counts: dict[str, int] = defaultdict(int)
        self._instants: list[datetime] = []
        self._counts: list[dict[str, int]] = []
        for at, code, change in changes:
            counts[code] += change
            positive = {code: number for code, number in counts.items() if number > 0}
            if self._instants and self._instants[-1] == at:
                self._counts[-1] = positive
            else:
                self._instants.append(at)
                self._counts.append(positive)

    def at(self, instant: datetime) -> Mapping[str, int]:
        """Return how many tasks waited at an instant, by reason code."""
        place = bisect_right(self._instants, instant) - 1
        return self._counts[place] if place >= 0 else {}

    def changes_between(self, since: datetime, until: datetime) -> Sequence[datetime]:
        """Return the instants at which the counts changed, without the bounds."""
        first = bisect_right(self._instants, since)
        last = bisect_right(self._instants, until)
        return [instant for instant in self._instants[first:last] if instant < until]


def open_times(since: datetime, until: datetime, closed: Iterable[Period]) -> list[Period]:
    """Return the parts of a night in which the window was open."""
    times, at = [], since
    for begin, end in sorted(clip(closed, since, until)):
        if begin > at:
            times.append((at, begin))
        at = max(at, end)
    return [*times, (at, until)] if at < until else times


def allot(runs: Iterable[tuple[datetime, datetime, R]]) -> list[list[tuple[datetime, datetime, R]]]:
    """Give each run the lowest slot that is free at its beginning.

    >>> t = [datetime(2026, 11, 16, hour) for hour in range(4)]
    >>> [[run for _, _, run in slot] for slot in allot([(t[0], t[2], "a"), (t[1], t[3], "b")])]
    [['a'], ['b']]
    """
    slots: list[list[tuple[datetime, datetime, R]]] = []
    free: list[int] = []
    busy: list[tuple[datetime, int]] = []
    for since, until, run in sorted(runs, key=lambda one: (one[0], one[1])):
        while busy and busy[0][0] <= since:
            heappush(free, heappop(busy)[1])
        if free:
            number = heappop(free)
        else:
            number = len(slots)
            slots.append([])
        slots[number].append((since, until, run))
        heappush(busy, (until, number))
    return slots


def merge_runs(
    slots: Iterable[Sequence[tuple[datetime, datetime, R]]], gap: timedelta
) -> list[list[tuple[datetime, datetime, R]]]:
    """Return slots in which runs that follow each other within `gap` are one, named by the first.

    A night of thousands of short runs is drawn and sent in this way.
    """
    merged = []
    for slot in slots:
        found: list[tuple[datetime, datetime, R]] = []
        for since, until, run in slot:
            if found and since - found[-1][1] < gap:
                found[-1] = (found[-1][0], until, found[-1][2])
            else:
                found.append((since, until, run))
        merged.append(found)
    return merged


def fill_slots(
    allotted: Sequence[Sequence[tuple[datetime, datetime, R]]],
    open_slots: Sequence[tuple[datetime, datetime, int]],
    waiting: WaitingTasks,
    *,
    is_partial: bool = False,
) -> list[list[SlotTime[R]]]:
    """Return what each slot did while the window was open and the plan had it.

    `allotted` are the runs of each slot, as `allot` gives them.
    `open_slots` are the open parts of the night with the number of slots of each. `is_partial`:
    there were more waiting tasks than `waiting` knows.
    """
    most = max((count for _, _, count in open_slots), default=0)
    filled: list[list[SlotTime[R]]] = []
    empty_before: dict[datetime, int] = {}
    bounds = _bounds(allotted, open_slots, waiting)
    for number in range(most):
        taken = allotted[number] if number < len(allotted) else []
        parts: list[SlotTime[R]] = []
        for begin, end, count in open_slots:
            if number >= count:
                continue
            at = begin
            for since, until, run in taken:
                if until <= begin or since >= end:
                    continue
                first, last = max(since, begin), min(until, end)
                if first > at:
                    parts += _idle(at, first, bounds, empty_before, waiting, is_partial=is_partial)
                parts.append(SlotTime(first, last, run))
                at = last
            if at < end:
                parts += _idle(at, end, bounds, empty_before, waiting, is_partial=is_partial)
        filled.append(list(_joined(parts)))
    return filled


def _bounds(
    allotted: Sequence[Sequence[tuple[datetime, datetime, R]]],
    open_slots: Sequence[tuple[datetime, datetime, int]],
    waiting: WaitingTasks,
) -> list[datetime]:
    """Return every instant at which the number of empty slots or of waiting tasks changes."""
    bounds = {instant for slot in allotted for one in slot for instant in one[:2]}
    for begin, end, _ in open_slots:
        bounds |= {begin, end, *waiting.changes_between(begin, end)}
    return sorted(bounds)


def _idle(
    since: datetime,
    until: datetime,
    bounds: Sequence[datetime],
    empty_before: dict[datetime, int],
    waiting: WaitingTasks,
    *,
    is_partial: bool,
) -> Iterator[SlotTime[R]]:
    """Yield an empty time in parts with one cause each.

    `empty_before` counts how many lower slots were empty in each part; it is written here.
    """
    first, last = bisect_right(bounds, since), bisect_right(bounds, until)
    cuts = [since, *(bound for bound in bounds[first:last] if bound < until), until]
    for begin, end in pairwise(cuts):
        place = empty_before.get(begin, 0)
        empty_before[begin] = place + 1
        yield SlotTime(begin, end, code=_cause(waiting.at(begin), place, is_partial=is_partial))


def _cause(counts: Mapping[str, int], place: int, *, is_partial: bool) -> str:
    """Return the cause of the waiting task at a place, counted from the nearest to its start."""
    for code in sorted(counts, key=lambda code: _NEARNESS.get(code, len(_NEARNESS))):
        if place < counts[code]:
            return code
        place -= counts[code]
    return UNKNOWN if is_partial else NOTHING_QUEUED


def _joined(parts: Iterable[SlotTime[R]]) -> Iterator[SlotTime[R]]:
    last: SlotTime[R] | None = None
    for part in parts:
        is_same = (
            last is not None
            and last.until == part.since
            and last.run is None
            and part.run is None
            and last.code == part.code
        )
        if last is not None and is_same:
            last = SlotTime(last.since, part.until, code=part.code)
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last
