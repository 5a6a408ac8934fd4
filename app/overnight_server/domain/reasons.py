"""The codes of the reasons why a task is not running, and text helpers for their messages."""

from datetime import UTC, datetime
from enum import StrEnum

MINUTE, HOUR = 60, 3600
MINUTES_OF_DAY = 24 * 60


class ReasonScope(StrEnum):
    """What a reason concerns, from the narrowest to the widest: reasons are reported in this order.

    A reason of the task keeps only that task waiting, one of the user all tasks of the user, and
    one of the deployment those of several users.
    """

    TASK = "task"
    USER = "user"
    DEPLOYMENT = "deployment"


class ReasonCode(StrEnum):
    """Everything that can keep a task from running, in the order in which it is reported."""

    STATE = "state"
    DEPENDENCY = "dependency"
    START_AT = "start_at"
    RETRY_AT = "retry_at"
    APPROVAL = "approval"
    DEADLINE = "deadline"
    BUDGET = "budget"
    LOCK = "lock"
    PLAN_CONCURRENCY = "plan_concurrency"
    MONTHLY_HOURS = "monthly_hours"
    WINDOW = "window"
    PAUSED = "paused"
    NO_WORKER = "no_worker"
    NO_CAPABLE_AGENT = "no_capable_agent"
    HANDLER = "handler"
    SLOTS = "slots"
    SLOTS_MAX = "slots_max"
    BEHIND = "behind"


def format_instant(instant: datetime) -> str:
    """Return an instant as text for people, in UTC to the minute.

    >>> format_instant(datetime(2026, 11, 16, 22, 0, tzinfo=UTC))
    '2026-11-16 22:00Z'
    """
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%MZ}"


def format_duration(seconds: float, *, has_days: bool = False) -> str:
    """Return a duration as text for people, rounded to the minute, or below a minute to the second.

    Everything that is shown uses it, so that a page and a mail write the same time alike. With
    `has_days`, for ages and waits, a time of a day or more is written in days.

    >>> [format_duration(seconds) for seconds in (0, 0.2, 20, 59.7, 1800, 7200, 4980, 90000)]
    ['0 s', 'under 1 s', '20 s', '1 min', '30 min', '2 h', '1 h 23', '25 h']
    >>> format_duration(90000, has_days=True)
    '1 d 1 h'
    """
    if seconds <= 0:
        return "0 s"
    if seconds < 1:
        return "under 1 s"
    if round(seconds) < MINUTE:
        return f"{round(seconds)} s"
    minutes = round(seconds / MINUTE)
    hours, rest = divmod(minutes, 60)
    if has_days and minutes >= MINUTES_OF_DAY:
        days, hours = divmod(hours, 24)
        return f"{days} d {hours} h" if hours else f"{days} d"
    if not hours:
        return f"{rest} min"
    return f"{hours} h {rest:02d}" if rest else f"{hours} h"


def format_rest(seconds: float) -> str:
    """Return how much of a limit is left, rounded down: what needs more must not seem to fit.

    >>> format_rest(1799), format_rest(50)
    ('29 min', '50 s')
    """
    return format_duration(seconds // MINUTE * MINUTE if seconds >= MINUTE else seconds)


def join_names(names: list[str], total: int | None = None) -> str:
    """Return the names as one phrase; with `total`, add how many more there are.

    >>> join_names(["a", "b"]), join_names(["a", "b"], 5)
    ('a and b', 'a, b and 3 more')
    """
    more = (total or len(names)) - len(names)
    parts = [*names, f"{more} more"] if more > 0 else names
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
