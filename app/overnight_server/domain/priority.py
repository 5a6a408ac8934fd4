"""Who goes first inside one user's queue; lower is more urgent everywhere.

A task's urgency is its stored score, less what it gained by waiting, by its deadline coming near
and by the work that waits behind it. Waiting counts at a constant rate, so the order of two tasks
never changes by it, and one number can be stored and indexed: `sort_key`. The database has the
same formula (schema/05_tasks.sql) for what it must compute on its own clock.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

DEFAULT_SCORE = 50
# A position beyond this is not counted: nobody reads it, and the count costs more the longer the
# queue is.
MAX_POSITION = 1_000
# The four words on the wire, and the score each stands for.
SCORE_OF = {1: 5, 2: 20, 3: 50, 4: 70}
# Below this a task is critical: a band of its own that ageing never overtakes.
CRITICAL_BELOW = 10
# The rate at which tasks age unless they say otherwise, in points a minute.
USUAL_BOOST = 0.1
# What one that ages at another rate gains or loses on the others: the difference over a night.
NIGHT = timedelta(hours=8)
# What sets the band apart, in points: more than any other term can ever weigh.
BAND = 1e9
# Points at the deadline, and how long before it there are half as many.
DEADLINE_POINTS = 40.0
DEADLINE_HALVING = timedelta(hours=1)
# Beyond this a deadline weighs too little to change an order.
DEADLINE_HORIZON = timedelta(hours=12)
# The most that work waiting behind a task can weigh, so that it never outruns a whole tier.
MAX_DEPENDENCY_BOOST = 20.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_HALVINGS = 1000.0
TIERS = ((10, "critical"), (30, "high"), (60, "normal"), (80, "low"), (101, "background"))


def score(priority: int) -> int:
    """Return the stored score for a priority 1..4 on the wire.

    >>> score(3)
    50
    """
    return SCORE_OF[priority]


def priority_of(stored: int) -> int:
    """Return the wire's priority for a stored score; the nearest word that is not too modest.

    >>> [priority_of(n) for n in (0, 5, 20, 50, 70, 95)]
    [1, 1, 2, 3, 4, 4]
    """
    if stored < CRITICAL_BELOW:
        return 1
    return {"high": 2, "normal": 3}.get(tier(stored), 4)


def tier(stored: int) -> str:
    """Return the name of the band a stored score lies in."""
    return next(name for limit, name in TIERS if stored < limit)


def deadline_urgency(left: timedelta) -> float:
    """Return the points a task gains from its deadline; more and more as it nears.

    >>> [deadline_urgency(timedelta(hours=hours)) for hours in (0, 1, 3)]
    [40.0, 20.0, 5.0]
    """
    halvings = min(max(left / DEADLINE_HALVING, 0.0), _LONGEST_HALVINGS)
    return float(DEADLINE_POINTS * 2**-halvings)


def critical_path_weights(count: int, edges: Iterable[tuple[int, int]]) -> list[float]:
    """Return for each task of a graph the points it gains from the work behind it.

    A point for each task of the longest chain that waits for it, and among equal chains a little
    more for the one that more tasks wait for. `edges` are (parent, child) pairs without a circle.

    >>> critical_path_weights(4, [(0, 1), (1, 2), (0, 3)])
    [2.666..., 1.5, 0.0, 0.0]
    """
    links = list(edges)
    if not links:
        return [0.0] * count
    children: list[list[int]] = [[] for _ in range(count)]
    parents: list[list[int]] = [[] for _ in range(count)]
    for parent, child in links:
        children[parent].append(child)
        parents[child].append(parent)
    chain = [0] * count
    open_children = [len(below) for below in children]
    # From the ends of the graph upwards, each task once all that waits for it is known.
    settled = [task for task in range(count) if not open_children[task]]
    for task in settled:
        for parent in parents[task]:
            chain[parent] = max(chain[parent], chain[task] + 1)
            open_children[parent] -= 1
            if not open_children[parent]:
                settled.append(parent)
    return [
        min(MAX_DEPENDENCY_BOOST, chain[task] + 1 - 1 / (1 + len(children[task])))
        for task in range(count)
    ]


def effective_priority(
    stored: int,
    *,
    boost_per_minute: float,
    age: timedelta,
    dependency_boost: float = 0.0,
    left: timedelta | None = None,
) -> float:
    """Return how urgent a task is, lower first; `left` is the time to its deadline, if it has one.

    >>> effective_priority(90, boost_per_minute=0.1, age=timedelta(hours=5))
    60.0
    """
    deadline_boost = 0.0 if left is None else deadline_urgency(left)
    age_boost = boost_per_minute * (age / timedelta(minutes=1))
    band = BAND if stored < CRITICAL_BELOW else 0.0
    return stored - age_boost - deadline_boost - dependency_boost - band


def sort_key(
    stored: int,
    *,
    boost_per_minute: float,
    made_at: datetime,
    now: datetime,
    dependency_boost: float = 0.0,
    deadline_at: datetime | None = None,
) -> float:
    """Return the number the queue is ordered by: the urgency the task would have had in 1970.

    What is added to all tasks alike changes no order, so for tasks that age at the usual rate
    this orders as `effective_priority` does, at every instant. Between unlike rates the true order
    changes with time and cannot be stored; a constant for the difference keeps it sane: whoever
    asks to age faster goes earlier, and nobody can stay ahead of older tasks for ever.
    """
    minutes = NIGHT / timedelta(minutes=1)
    return effective_priority(
        stored,
        boost_per_minute=USUAL_BOOST,
        age=_EPOCH - made_at,
        dependency_boost=dependency_boost + (boost_per_minute - USUAL_BOOST) * minutes,
        left=None if deadline_at is None else deadline_at - now,
    )


def position_of(ahead: int | None, most: int = MAX_POSITION) -> int | None:
    """Return a task's position from 1, given how many are ahead; None if not counted that far.

    >>> position_of(0), position_of(MAX_POSITION), position_of(None)
    (1, None, None)
    """
    return None if ahead is None or ahead >= most else ahead + 1
