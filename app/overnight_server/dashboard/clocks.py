"""How pages write instants, durations, money and sizes."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from markupsafe import Markup, escape

from overnight_server.domain.reasons import format_duration

KILO = 1000
MAX_ZONE_NAME = 60


class ClockMode(StrEnum):
    """How a reader wants to see instants."""

    ZONE = "zone"
    UTC = "utc"
    AGO = "ago"


@dataclass(frozen=True)
class Clock:
    """Writes instants for one reader: in a zone, in UTC, or as the time since or until then."""

    now: datetime
    zone: str
    mode: ClockMode = ClockMode.ZONE

    @cached_property
    def tz(self) -> tzinfo:
        """The zone of the instants; UTC if there is no zone of this name."""
        return UTC if self.mode is ClockMode.UTC else find_zone(self.zone) or UTC

    @property
    def place(self) -> str:
        """The short name of the zone in which instants are written and read.

        >>> Clock(datetime(2026, 11, 17, tzinfo=UTC), "America/New_York", ClockMode.UTC).place
        'UTC'
        """
        return "UTC" if self.mode is ClockMode.UTC else self.own_place

    @property
    def own_place(self) -> str:
        """The short name of the reader's own zone, as on the switch.

        >>> Clock(datetime(2026, 11, 17, tzinfo=UTC), "America/New_York").own_place
        'New York'
        """
        return self.zone.rpartition("/")[2].replace("_", " ")

    def local(self, instant: datetime) -> datetime:
        """Return an instant in the reader's zone."""
        return instant.astimezone(self.tz)

    def text(self, instant: datetime) -> str:
        """Write an instant, as short as the reader can understand it today.

        >>> clock = Clock(datetime(2026, 11, 17, 7, 12, tzinfo=UTC), "UTC")
        >>> clock.text(datetime(2026, 11, 17, 6, 0, tzinfo=UTC))
        '06:00'
        >>> clock.text(datetime(2026, 11, 16, 19, 50, tzinfo=UTC))
        'yesterday, 19:50'
        >>> clock.text(datetime(2026, 11, 21, tzinfo=UTC))
        'Sat 21 Nov, 00:00'
        """
        if self.mode is ClockMode.AGO:
            return self.distance(instant)
        at, today = self.local(instant), self.local(self.now)
        days = (at.date() - today.date()).days
        if days in NEAR_DAYS:
            return f"{NEAR_DAYS[days]}{at:%H:%M}"
        if at.year != today.year:
            return f"{at.day} {at:%b %Y}"
        return f"{at:%a} {at.day} {at:%b, %H:%M}"

    def distance(self, instant: datetime) -> str:
        """Write how long ago an instant was, or how far it is away."""
        seconds = (instant - self.now).total_seconds()
        return f"in {lasting(seconds)}" if seconds > 0 else f"{lasting(-seconds)} ago"

    def when(self, instant: datetime | None) -> Markup:
        """Return an instant within a sentence: `at 06:00`, or `yesterday, 19:50`."""
        at = self.at(instant)
        is_time_alone = instant is not None and self.text(instant)[2:3] == ":"
        return Markup("at {}").format(at) if is_time_alone else at

    def at(self, instant: datetime | None) -> Markup:
        """Return an instant as an element, with the whole instant as its tooltip."""
        if instant is None:
            return Markup()
        exact = f"{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        local = self.local(instant)
        title = f"{local:%A}, {local.day} {local:%B %Y, %H:%M:%S} {escape(self.tz)}"
        ago = " data-ago" if self.mode is ClockMode.AGO else ""
        # A page has hundreds of instants, and Markup.format takes longer than all else of them.
        text = f'<time datetime="{exact}" title="{title}"{ago}>{self.text(instant)}</time>'
        return Markup(text)  # noqa: S704 - numbers, names of days and months, and of a zone


NEAR_DAYS = {-1: "yesterday, ", 0: "", 1: "tomorrow, "}


def find_zone(name: str) -> tzinfo | None:
    """Return the zone of a name; None if there is none."""
    if not name or len(name) > MAX_ZONE_NAME:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def lasting(duration: float | timedelta | None) -> str:
    """Write a duration for people; an unknown one is empty.

    >>> [lasting(seconds) for seconds in (0.2, 12, 3504, 3660, 7200, 90000)]
    ['under 1 s', '12 s', '58 min', '1 h 01', '2 h', '1 d 1 h']
    """
    if duration is None:
        return ""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    return format_duration(seconds, has_days=True)


def usd(amount: float | None) -> str:
    """Write an amount of money; nothing is empty.

    >>> usd(0.853), usd(1234.5), usd(0.0004), usd(0), usd(None)
    ('$0.85', '$1,234.50', 'under $0.01', '', '')
    """
    if not amount:
        return ""
    return "under $0.01" if 0 < amount < 0.005 else f"${amount:,.2f}"  # noqa: PLR2004 - half a cent


def size(count: int) -> str:
    """Write a number of bytes.

    >>> size(900), size(18_400), size(41_000_000)
    ('900 B', '18 KB', '41 MB')
    """
    number = float(count)
    for unit in ("B", "KB", "MB"):
        if number < KILO:
            return f"{number:.0f} {unit}"
        number /= KILO
    return f"{number:.1f} GB"


def count(number: int, one: str, many: str = "") -> str:
    """Write a number with its noun.

    >>> count(1, "task"), count(12000, "task"), count(2, "entry", "entries")
    ('1 task', '12,000 tasks', '2 entries')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
