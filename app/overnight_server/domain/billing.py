"""Billing months that never drift: each boundary is counted from the anchor, not the last one."""

from calendar import monthrange
from datetime import UTC, datetime

MONTHS = 12


def boundary(anchor: datetime, cycle: int) -> datetime:
    """Return where cycle number `cycle` begins; the anchor itself begins cycle 0.

    A day the month does not have becomes its last day, and the next month has it back.

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
    """Return the number of the cycle an instant lies in.

    >>> cycle_at(datetime(2026, 1, 31, tzinfo=UTC), datetime(2026, 2, 28, tzinfo=UTC))
    1
    """
    start, at = anchor.astimezone(UTC), instant.astimezone(UTC)
    cycle = (at.year - start.year) * MONTHS + at.month - start.month
    return cycle if boundary(anchor, cycle) <= at else cycle - 1
