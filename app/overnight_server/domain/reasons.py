"""The codes of the reasons why a task is not running, and text helpers for their messages."""

from datetime import UTC, datetime
from enum import StrEnum

MINUTE, HOUR = 60, 3600


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


def format_duration(seconds: float) -> str:
    """Return a duration as text for people: in seconds below a minute, else in hours and minutes.

    >>> format_duration(20), format_duration(1800), format_duration(2 * 3600), format_duration(5000)
    ('20 s', '30 min', '2 h', '1 h 23 min')
    """
    whole = max(0, int(seconds))
    if whole < MINUTE:
        return f"{whole} s"
    hours, minutes = divmod(whole // MINUTE, 60)
    return " ".join(f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min")) if count)


def join_names(names: list[str], total: int | None = None) -> str:
    """Return the names as one phrase; with `total`, add how many more there are.

    >>> join_names(["a", "b"]), join_names(["a", "b"], 5)
    ('a and b', 'a, b and 3 more')
    """
    more = (total or len(names)) - len(names)
    parts = [*names, f"{more} more"] if more > 0 else names
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
