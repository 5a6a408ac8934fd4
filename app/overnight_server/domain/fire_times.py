"""Fire times: the instants of cron expressions, intervals and one-off times.

A cron expression is read in the local time of its zone. When clocks change:

* A time that is skipped fires once, right after the change. Several skipped times fire once.
* A time that occurs twice fires at its first occurrence.
* An expression that fires in every hour (its hour field is `*`) counts elapsed time instead: a
  skipped hour has no fire time, and both of two equal hours have theirs.

Fire times are computed from the one before, never from when something looked, so every process
computes the same ones.
"""

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import chain, islice
from typing import assert_never
from uuid import UUID
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from overnight_server.domain.windows import instant_of

SHORTEST_GAP = timedelta(minutes=1)
LONGEST_INTERVAL = timedelta(days=366)
# No zone has put its clocks back by more than this for decades.
_LONGEST_CHANGE = timedelta(hours=3)
_ALL_HOURS = set(range(24))
# Minute, hour, day of month, month, day of week.
FIELDS = 5
# The windows in which the last fire time is sought: a short one suffices for a frequent schedule.
_WINDOWS_BACK = tuple(timedelta(hours=hours) for hours in (1, 25, 24 * 32, 24 * 367, 24 * 1830))
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Cron:
    """A cron expression of five fields, in the local time of a zone."""

    expression: str
    zone: str


@dataclass(frozen=True)
class Interval:
    """Every so often, counted from an instant; changes of clocks have no effect."""

    every: timedelta
    anchor_at: datetime


@dataclass(frozen=True)
class Once:
    """One instant."""

    at: datetime


Timing = Cron | Interval | Once


@dataclass(frozen=True)
class FireTimes:
    """The fire times of a schedule: those of its timing from `starts_at` to `ends_at`."""

    timing: Timing
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def after(self, instant: datetime) -> Iterator[datetime]:
        """Yield the fire times after an instant, in order."""
        if self.starts_at is not None:
            instant = max(instant, self.starts_at - _MICROSECOND)
        for at in _times(self.timing, instant):
            if self.ends_at is not None and at > self.ends_at:
                return
            yield at

    def first_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time after an instant; None if there is none."""
        return next(self.after(instant), None)

    def next_times(self, instant: datetime, count: int) -> list[datetime]:
        """Return the next `count` fire times after an instant, or fewer if there are fewer."""
        return list(islice(self.after(instant), count))

    def last_before(self, instant: datetime) -> datetime | None:
        """Return the last fire time before an instant, also before `starts_at`.

        None if there was none in the five years before.
        """
        for window in _WINDOWS_BACK:
            earlier = FireTimes(self.timing).between(instant - window, instant)
            if last := deque(earlier, maxlen=1):
                return last[0]
        return None

    def between(self, since: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the fire times from `since` to `until`, without `until`."""
        for at in self.after(since - _MICROSECOND):
            if at >= until:
                return
            yield at


def check_cron(expression: str) -> str | None:
    """Return what is wrong with a cron expression of five fields; None if it is valid.

    >>> check_cron("0 22 * * 1-5"), check_cron("0 25 * * *"), check_cron("0 0 30 2 *")
    (None, 'Bad hour', 'Bad day-of-month')
    """
    if len(expression.split()) != FIELDS:
        return "a cron expression has five fields: minute, hour, day of month, month, day of week"
    try:
        next(CronSim(expression, datetime(2000, 1, 1)))  # noqa: DTZ001 - a wall-clock time
    except CronSimError as error:
        return str(error)
    except StopIteration:
        return "it never fires"
    except (AssertionError, ValueError):
        return "it is no cron expression"
    return None


@dataclass(frozen=True)
class DueTime:
    """A fire time, and the instant when it is due, which is later by its jitter."""

    fire_at: datetime
    due_at: datetime


def due_time(
    schedule_id: UUID, fire_at: datetime, jitter: timedelta, next_at: datetime | None
) -> DueTime:
    """Return when a fire time is due: up to `jitter` later, and before the next fire time.

    The delay depends on the schedule and the fire time alone, so all processes agree on it.
    """
    if next_at is not None:
        jitter = min(jitter, next_at - fire_at)
    name = f"{schedule_id}:{fire_at.astimezone(UTC).isoformat()}"
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32
    return DueTime(fire_at, fire_at + timedelta(seconds=int(share * jitter.total_seconds())))


def due_times(
    times: FireTimes,
    *,
    schedule_id: UUID,
    fire_at: datetime,
    jitter: timedelta,
    now: datetime,
    limit: int,
) -> tuple[list[DueTime], DueTime | None]:
    """Return the fire times from `fire_at` on that are due, and the next one.

    At most `limit` due ones are returned; then the next one may be due too. The next one is None
    after the last fire time.
    """
    due: list[DueTime] = []
    for following in chain(times.after(fire_at), [None]):
        time = due_time(schedule_id, fire_at, jitter, following)
        if time.due_at > now or len(due) == limit:
            return due, time
        due.append(time)
        if following is None:
            break
        fire_at = following
    return due, None


def _times(timing: Timing, after: datetime) -> Iterator[datetime]:
    match timing:
        case Cron():
            yield from _cron_times(timing, after)
        case Interval(every, anchor_at):
            steps = max(0, (after - anchor_at) // every + 1)
            while True:
                yield anchor_at + steps * every
                steps += 1
        case Once(at):
            if at > after:
                yield at
        case _:
            assert_never(timing)


def _cron_times(cron: Cron, after: datetime) -> Iterator[datetime]:
    zone = ZoneInfo(cron.zone)
    start = after.astimezone(zone).replace(tzinfo=None)
    walls = CronSim(cron.expression, start)
    if walls.hours == _ALL_HOURS:
        yield from _elapsed_times(cron, zone, after)
        return
    last = after
    # Times that are skipped together all mean the instant of the change: the first one counts.
    for wall in walls:
        at = instant_of(zone, wall.date(), wall.time())
        if at > last:
            last = at
            yield at


def _elapsed_times(cron: Cron, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield every instant whose local time matches, also the second of two equal local times."""
    around = (after - _LONGEST_CHANGE, after + _LONGEST_CHANGE)
    offsets = {instant.astimezone(zone).utcoffset() for instant in around}
    # Near a change, an earlier local time may occur once more after the instant.
    back = _LONGEST_CHANGE if len(offsets) > 1 else timedelta()
    start = (after.astimezone(zone) - back).replace(tzinfo=None)
    second_occurrences: list[datetime] = []
    for wall in CronSim(cron.expression, start):
        local = wall.replace(tzinfo=zone)
        first, second = (local.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
        # Nothing that follows is earlier than this.
        while second_occurrences and second_occurrences[0] < min(first, second):
            yield heappop(second_occurrences)
        if second < first:
            continue  # skipped
        if second > first and second > after:
            heappush(second_occurrences, second)
        if first > after:
            yield first
