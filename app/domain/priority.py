"""Who goes first inside one user's queue; lower is more urgent everywhere."""

DEFAULT_SCORE = 50
# The four words on the wire, and the score each stands for.
SCORE_OF = {1: 5, 2: 20, 3: 50, 4: 70}
# Below this a task is critical: a band of its own that ageing never overtakes.
CRITICAL_BELOW = 10
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
