"""Fairness: how long users waited, their shares of the slots, and Jain's index of the shares."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from operator import add
from statistics import median
from typing import TypeVar

from overnight_server.domain.lock_keys import is_wide

U = TypeVar("U")

# The beginning and the end of a time, in seconds; an end that has not come is infinity.
Period = tuple[float, float]

# Stands for the locks of all tasks with several keys or a path.
WIDE = ""
# The number of evenly spaced moments at which a period is sampled.
MOMENTS = 500


@dataclass(frozen=True, slots=True)
class TaskInterval:
    """When a task was ready, started and ended, in seconds; None for what has not happened yet.

    `held` are the parts of its wait in which it could not start whoever was served, in order and
    without overlap. `is_owed` False means that no pool would take a task of its user now.
    """

    user: str
    ready: float
    start: float | None
    end: float | None
    locks: tuple[str, ...] = ()
    is_owed: bool = True
    held: tuple[Period, ...] = ()

    def wait(self, until: float) -> float:
        """Return how long the task waited for its start, without the time in which it was held."""
        end = until if self.start is None else self.start
        return max(0.0, end - self.ready - sum(ended - began for began, ended in self.held))


@dataclass(frozen=True)
class UserFairness:
    """How one user was served in a period.

    `service` is the part of an even share of the slots that the user got, from 0 to 1; None if no
    task was ready or running at any sampled moment.
    """

    user: str
    started: int
    waiting: int
    longest_wait: float
    median_wait: float | None
    slot_seconds: float
    slot_share: float
    service: float | None


def jain(values: Collection[float]) -> float | None:
    """Return Jain's index: 1 if all values are equal, 1/n if one has all, None without values.

    >>> jain([1, 1, 1, 1]), jain([1, 0, 0, 0])
    (1.0, 0.25)
    """
    squares = sum(value * value for value in values)
    if not values:
        return None
    return 1.0 if squares == 0 else sum(values) ** 2 / (len(values) * squares)


def even_shares(demands: Mapping[U, float], slots: float) -> dict[U, float]:
    """Divide slots evenly among users; what one cannot use is divided among the others.

    >>> even_shares({"ada": 1, "bob": 9, "cyd": 9}, 7)
    {'ada': 1, 'bob': 3.0, 'cyd': 3.0}
    """
    shares: dict[U, float] = {}
    left = slots
    by_demand = sorted(demands.items(), key=lambda item: item[1])
    for place, (user, demand) in enumerate(by_demand):
        shares[user] = min(demand, left / (len(by_demand) - place))
        left -= shares[user]
    return shares


def merge_periods(periods: Iterable[Period], begin: float, end: float) -> Iterator[Period]:
    """Yield the periods within `begin` and `end` in order, overlapping ones as one.

    >>> list(merge_periods([(5, 9), (0, 3), (2, 4)], 1, 8))
    [(1, 4), (5, 8)]
    """
    clipped = sorted((max(began, begin), min(ended, end)) for began, ended in periods)
    last: Period | None = None
    for began, ended in clipped:
        if began >= ended:
            continue
        if last is not None and began <= last[1]:
            last = last[0], max(last[1], ended)
            continue
        if last is not None:
            yield last
        last = began, ended
    if last is not None:
        yield last


def gaps(periods: Iterable[Period], begin: float, end: float) -> Iterator[Period]:
    """Yield the times between `begin` and `end` that are in none of the periods, in order.

    >>> list(gaps([(2, 4), (6, 20)], 1, 8))
    [(1, 2), (4, 6)]
    """
    at = begin
    for began, ended in merge_periods(periods, begin, end):
        if at < began:
            yield at, began
        at = ended
    if at < end:
        yield at, end


def fairness_of_users(
    intervals: Sequence[TaskInterval], limits: Mapping[str, int], since: float, until: float
) -> list[UserFairness]:
    """Return the fairness of each user in a period, the longest wait first.

    `limits` is how many tasks each user may run at the same time.
    """
    service = _service(intervals, limits, since, until)
    by_user: dict[str, list[TaskInterval]] = defaultdict(list)
    for interval in intervals:
        by_user[interval.user].append(interval)
    held = {
        user: sum(_slot_seconds(interval, until) for interval in own)
        for user, own in by_user.items()
    }
    all_held = sum(held.values())
    of_users = [
        _user_fairness(own, until, held[user], all_held, service.get(user))
        for user, own in by_user.items()
    ]
    return sorted(of_users, key=lambda each: (-each.longest_wait, each.user))


def _user_fairness(
    own: Sequence[TaskInterval], until: float, held: float, all_held: float, service: float | None
) -> UserFairness:
    waits = [interval.wait(until) for interval in own]
    begun = [wait for wait, interval in zip(waits, own, strict=True) if interval.start is not None]
    return UserFairness(
        user=own[0].user,
        started=len(begun),
        waiting=len(own) - len(begun),
        longest_wait=max(waits),
        median_wait=median(begun) if begun else None,
        slot_seconds=held,
        slot_share=held / all_held if all_held else 0.0,
        service=service,
    )


def _slot_seconds(interval: TaskInterval, until: float) -> float:
    if interval.start is None:
        return 0.0
    return max(0.0, (until if interval.end is None else interval.end) - interval.start)


def _service(
    intervals: Iterable[TaskInterval], limits: Mapping[str, int], since: float, until: float
) -> dict[str, float]:
    """Return the part of an even share that each user got, over all sampled moments."""
    moments = _Moments(since, until)
    running: dict[str, list[int]] = defaultdict(moments.blank)
    ready_steps: dict[tuple[str, str | None], list[int]] = defaultdict(moments.blank)
    for interval in intervals:
        end = until if interval.end is None else interval.end
        if interval.is_owed:
            for began, ended in gaps(interval.held, interval.ready, end):
                moments.add(ready_steps[interval.user, _shared(interval.locks)], began, ended)
        if interval.start is not None:
            moments.add(running[interval.user], interval.start, end)
    active = {user: list(accumulate(steps)) for user, steps in running.items()}
    demand = _demands(ready_steps, active, moments)
    got: dict[str, float] = defaultdict(float)
    due: dict[str, float] = defaultdict(float)
    for moment in range(MOMENTS):
        demands_now = {
            user: min(counts[moment], limits.get(user, counts[moment]))
            for user, counts in demand.items()
            if counts[moment] > 0
        }
        # Only the slots in use are divided; an idle slot was taken from nobody.
        slots = sum(active[user][moment] for user in demands_now if user in active)
        for user, share in even_shares(demands_now, slots).items():
            due[user] += share
            got[user] += min(share, active[user][moment]) if user in active else 0.0
    return {user: got[user] / total for user, total in due.items() if total > 0}


def _shared(locks: Sequence[str]) -> str | None:
    return (WIDE if is_wide(locks) else locks[0]) if locks else None


def _demands(
    ready_steps: Mapping[tuple[str, str | None], Sequence[int]],
    active: Mapping[str, Sequence[int]],
    moments: "_Moments",
) -> dict[str, list[int]]:
    """Return how many slots each user could have used at each moment.

    Tasks with the same lock could use one slot. For tasks with several locks or a path it is not
    computed how many could run together: one if no other task with locks is ready, and at least as
    many as ran.
    """
    # Lists are combined by `map`: a report of many users has millions of moments.
    loose: dict[str, list[int]] = defaultdict(moments.blank)
    locked: dict[str, list[int]] = {}
    wide: dict[str, list[int]] = {}
    for (user, lock), steps in ready_steps.items():
        counts = accumulate(steps)
        if lock is None:
            loose[user] = list(counts)
            continue
        held = [min(count, 1) for count in counts]
        of_locks = wide if lock == WIDE else locked
        of_locks[user] = list(map(add, of_locks[user], held)) if user in of_locks else held
    demand = {}
    for user in dict.fromkeys(user for user, _ in ready_steps):
        could = loose[user]
        with_locks = [locks[user] for locks in (locked, wide) if user in locks]
        if with_locks:
            most = with_locks[0] if len(with_locks) == 1 else list(map(max, *with_locks))
            could = list(map(add, could, most))
        demand[user] = list(map(max, could, active[user])) if user in active else could
    return demand


class _Moments:
    """Evenly spaced moments of a period; an interval is +1 at its start, -1 at its end."""

    def __init__(self, since: float, until: float) -> None:
        self._since = since
        self._step = max(until - since, 1e-9) / MOMENTS

    @staticmethod
    def blank() -> list[int]:
        return [0] * (MOMENTS + 1)

    def add(self, steps: list[int], begin: float, end: float) -> None:
        """Count the moments from `begin` until before `end`."""
        first, last = self._after(begin), self._after(end)
        if first < last:
            steps[first] += 1
            steps[last] -= 1

    def _after(self, at: float) -> int:
        place = ceil((at - self._since) / self._step - 0.5)
        return min(max(place, 0), MOMENTS)
