"""Billing months, counted from an anchor and not from the last reset, so they do not drift."""

from calendar import monthrange
from datetime import UTC, datetime

MONTHS = 12


def boundary(anchor: datetime, cycle: int) -> datetime:
    """Return the start of cycle number `cycle`; cycle 0 starts at the anchor.

    If a month does not have the anchor's day, its last day is used; later months are not affected.

    >>> january = datetime(2026, 1, 31, tzinfo=UTC)
    >>> [boundary(january, n).strftime("%m-%d") for n in (1, 2, 3)]
    ['02-28', '03-31', '04-30']
    """
    start = anchor.astimezone(UTC)
    years, month = divmod(start.month - 1 + cycle, MONTHS)
    year, month = start.year + years, month + 1
    day = min(start.day, monthrange(year, month)[1])
    return start.replace(year=year, month=month, day=day)


def cycle_at(anchor: datetime, instant: datetime) -> int:
    """Return the number of the cycle that contains an instant.

    >>> cycle_at(datetime(2026, 1, 31, tzinfo=UTC), datetime(2026, 2, 28, tzinfo=UTC))
    1
    """
    start, at = anchor.astimezone(UTC), instant.astimezone(UTC)
    cycle = (at.year - start.year) * MONTHS + at.month - start.month
    return cycle if boundary(anchor, cycle) <= at else cycle - 1
