"""How evenly users were served: waits, shares of the slots, and one number for all of it."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from statistics import median
from typing import TypeVar

from overnight_server.domain.locks import is_wide

U = TypeVar("U")

# What tasks with several locks or a path share, whichever they are.
WIDE = ""
# So many evenly spaced moments of a period are looked at.
MOMENTS = 500


@dataclass(frozen=True, slots=True)
class Spell:
    """One task's way from ready to start to end, in seconds; None for what has not come yet.

    `is_owed` False means that it waits for something else than its user's turn.
    """

    user: str
    ready: float
    start: float | None
    end: float | None
    locks: tuple[str, ...] = ()
    is_owed: bool = True


@dataclass(frozen=True)
class Receipt:
    """How one user fared.

    `service` is what the user got of an even share of the slots, from 0 to 1; None if no work
    was ready or running at any of the moments looked at.
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
    """Share slots evenly among those who can use them; what one cannot use goes to the others.

    >>> even_shares({"ada": 1, "bob": 9, "cyd": 9}, 7)
    {'ada': 1, 'bob': 3.0, 'cyd': 3.0}
    """
    shares: dict[U, float] = {}
    left = slots
    modest_first = sorted(demands.items(), key=lambda item: item[1])
    for place, (user, demand) in enumerate(modest_first):
        shares[user] = min(demand, left / (len(modest_first) - place))
        left -= shares[user]
    return shares


def receipts(
    spells: Sequence[Spell], limits: Mapping[str, int], since: float, until: float
) -> list[Receipt]:
    """Return how each user fared between two instants, the longest wait first.

    `limits` says how many tasks each user may run at once.
    """
    service = _service(spells, limits, since, until)
    by_user: dict[str, list[Spell]] = defaultdict(list)
    for spell in spells:
        by_user[spell.user].append(spell)
    held = {user: sum(_held(spell, until) for spell in own) for user, own in by_user.items()}
    all_held = sum(held.values())
    found = [
        _receipt(own, until, held[user], all_held, service.get(user))
        for user, own in by_user.items()
    ]
    return sorted(found, key=lambda receipt: (-receipt.longest_wait, receipt.user))


def _receipt(
    own: Sequence[Spell], until: float, held: float, all_held: float, service: float | None
) -> Receipt:
    waits = [(until if spell.start is None else spell.start) - spell.ready for spell in own]
    begun = [spell.start - spell.ready for spell in own if spell.start is not None]
    return Receipt(
        user=own[0].user,
        started=len(begun),
        waiting=len(own) - len(begun),
        longest_wait=max(0.0, *waits),
        median_wait=median(begun) if begun else None,
        slot_seconds=held,
        slot_share=held / all_held if all_held else 0.0,
        service=service,
    )


def _held(spell: Spell, until: float) -> float:
    if spell.start is None:
        return 0.0
    return max(0.0, (until if spell.end is None else spell.end) - spell.start)


def _service(
    spells: Iterable[Spell], limits: Mapping[str, int], since: float, until: float
) -> dict[str, float]:
    """Return what each user got of an even share, summed over the moments of the period."""
    moments = _Moments(since, until)
    running: dict[str, list[int]] = defaultdict(moments.blank)
    wanted: dict[tuple[str, str | None], list[int]] = defaultdict(moments.blank)
    for spell in spells:
        end = until if spell.end is None else spell.end
        if spell.is_owed:
            moments.add(wanted[spell.user, _shared(spell.locks)], spell.ready, end)
        if spell.start is not None:
            moments.add(running[spell.user], spell.start, end)
    active = {user: list(accumulate(steps)) for user, steps in running.items()}
    demand = _demands(wanted, active, moments)
    got: dict[str, float] = defaultdict(float)
    due: dict[str, float] = defaultdict(float)
    for moment in range(MOMENTS):
        asking = {
            user: min(counts[moment], limits.get(user, counts[moment]))
            for user, counts in demand.items()
            if counts[moment] > 0
        }
        # As many slots as were in use: those that stood idle nobody took from anybody.
        slots = sum(active[user][moment] for user in asking if user in active)
        for user, share in even_shares(asking, slots).items():
            due[user] += share
            got[user] += min(share, active[user][moment]) if user in active else 0.0
    return {user: got[user] / total for user, total in due.items() if total > 0}


def _shared(locks: Sequence[str]) -> str | None:
    return (WIDE if is_wide(locks) else locks[0]) if locks else None


def _demands(
    wanted: Mapping[tuple[str, str | None], Sequence[int]],
    active: Mapping[str, Sequence[int]],
    moments: "_Moments",
) -> dict[str, list[int]]:
    """Return how many slots each user could surely have used.

    Tasks of one lock could use one. How many of those with several locks or a path could go side
    by side is not worked out: one if no other locked task wants to run, and no fewer than ran.
    """
    loose: dict[str, list[int]] = defaultdict(moments.blank)
    locked: dict[str, list[int]] = defaultdict(moments.blank)
    wide: dict[str, list[int]] = defaultdict(moments.blank)
    for (user, lock), steps in wanted.items():
        total = (loose if lock is None else wide if lock == WIDE else locked)[user]
        for moment, count in enumerate(accumulate(steps)):
            total[moment] += count if lock is None else min(count, 1)
    return {
        user: [
            max(free + max(keys, one), ran)
            for free, keys, one, ran in zip(
                loose[user],
                locked[user],
                wide[user],
                active.get(user) or moments.blank(),
                strict=True,
            )
        ]
        for user in dict.fromkeys(user for user, _ in wanted)
    }


class _Moments:
    """Evenly spaced moments of a period; intervals are kept as steps up and down."""

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
