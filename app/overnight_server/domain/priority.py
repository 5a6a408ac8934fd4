"""The order of tasks within one user's queue; lower is more urgent everywhere.

A task's urgency is its stored score minus what it gains by waiting, by its deadline, and by the
tasks that depend on it. Waiting counts at a constant rate, so it never changes the order of two
tasks, and one number can be stored and indexed: `sort_key`. The SQL function `sort_key`
(schema/05_tasks.sql) is equal.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

DEFAULT_SCORE = 50
# Positions beyond this are not counted, because the count costs more the longer the queue is.
MAX_POSITION = 1_000
# The scores of the priorities 1 to 4 of the API.
SCORE_OF = {1: 5, 2: 20, 3: 50, 4: 70}
# Scores below this are critical: a band of its own, which ageing cannot reach.
CRITICAL_BELOW = 10
# The default rate at which tasks age, in points per minute.
USUAL_BOOST = 0.1
# A task with another rate gains or loses the difference over this time.
NIGHT = timedelta(hours=8)
# The points that separate the critical band; more than all other terms together.
BAND = 1e9
# Points at the deadline, and the time before it at which there are half as many.
DEADLINE_POINTS = 40.0
DEADLINE_HALVING = timedelta(hours=1)
# A deadline further away changes no order.
DEADLINE_HORIZON = timedelta(hours=12)
# The most that dependent tasks can add; less than the width of a tier.
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
    """Return the API's priority 1..4 for a stored score.

    >>> [priority_of(n) for n in (0, 5, 20, 50, 70, 95)]
    [1, 1, 2, 3, 4, 4]
    """
    if stored < CRITICAL_BELOW:
        return 1
    return {"high": 2, "normal": 3}.get(tier(stored), 4)


def tier(stored: int) -> str:
    """Return the name of the tier of a stored score."""
    return next(name for limit, name in TIERS if stored < limit)


def deadline_urgency(left: timedelta) -> float:
    """Return the points that a task gains from its deadline, given the time left.

    >>> [deadline_urgency(timedelta(hours=hours)) for hours in (0, 1, 3)]
    [40.0, 20.0, 5.0]
    """
    halvings = min(max(left / DEADLINE_HALVING, 0.0), _LONGEST_HALVINGS)
    return float(DEADLINE_POINTS * 2**-halvings)


def critical_path_weights(count: int, edges: Iterable[tuple[int, int]]) -> list[float]:
    """Return for each task of a graph the points that it gains from tasks that depend on it.

    One point for each task of the longest chain below it, and less than one more by the number of
    its children. `edges` are (parent, child) pairs without a cycle.

    >>> critical_path_weights(4, [(0, 1), (1, 2), (0, 3)])
    [2.666..., 1.5, 0.0, 0.0]
    """
    pairs = list(edges)
    if not pairs:
        return [0.0] * count
    children: list[list[int]] = [[] for _ in range(count)]
    parents: list[list[int]] = [[] for _ in range(count)]
    for parent, child in pairs:
        children[parent].append(child)
        parents[child].append(parent)
    chain = [0] * count
    open_children = [len(below) for below in children]
    # From the leaves upwards; a task is added when all its children are done.
    done = [task for task in range(count) if not open_children[task]]
    for task in done:
        for parent in parents[task]:
            chain[parent] = max(chain[parent], chain[task] + 1)
            open_children[parent] -= 1
            if not open_children[parent]:
                done.append(parent)
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
    """Return the urgency of a task, lower first; `left` is the time to its deadline, if any.

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
    """Return the number that orders the queue: the urgency that the task would have in 1970.

    For tasks with the default rate this is the order of `effective_priority` at every instant,
    because the age added since 1970 is the same for all. Between different rates the true order
    changes with time and cannot be stored. A constant replaces the difference: a task that ages
    faster goes earlier, but does not stay ahead of older tasks forever.
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
