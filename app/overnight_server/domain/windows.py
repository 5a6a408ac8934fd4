"""Night windows: the hours in which a user's tasks may start, in the user's time zone.

A window is given in wall-clock times and evaluated as instants. On each local day it opens at one
time and closes at the next occurrence of the other. When clocks change, a time that occurs twice
means its first occurrence, and a time that is skipped means the moment of the change. Windows
therefore never overlap, and a night may have 23 or 25 hours.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from math import inf
from zoneinfo import ZoneInfo

from overnight.errors import InvalidRequest
from overnight.models.enums import AtClosing

_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_UTC_DAY = (ZoneInfo("UTC"), time(0))
_SECOND = timedelta(seconds=1)
# Days searched around an instant: a window is shorter than a day, but a zone may skip a whole day.
_DAYS_BACK, _DAYS_ON = 3, 4
# A window whose time zone is unknown stays closed and is evaluated again after this time.
UNKNOWN_ZONE_RETRY = timedelta(minutes=15)


@dataclass(frozen=True)
class NightWindow:
    """A window as its user set it; `opens` and `closes` differ and may span midnight."""

    zone: str
    opens: time
    closes: time
    at_closing: AtClosing = AtClosing.FINISH

    def __str__(self) -> str:
        """Return the window as text for people.

        >>> str(NightWindow("Europe/Berlin", time(22), time(6)))
        '22:00-06:00 Europe/Berlin'
        """
        return f"{self.opens:%H:%M}-{self.closes:%H:%M} {self.zone}"


@dataclass(frozen=True)
class WindowState:
    """The state of a window at an instant, with the current night, or the next one if closed."""

    is_open: bool
    opens_at: datetime
    closes_at: datetime
    closed_at: datetime

    @property
    def changes_at(self) -> datetime:
        """When the window next opens or closes."""
        return self.closes_at if self.is_open else self.opens_at


def parse_window(zone: str, opens: str, closes: str, at_closing: str) -> NightWindow:
    """Parse a window; raise InvalidRequest that names the wrong field and legal values.

    >>> parse_window("Europe/Berlin", "22:00", "06:00", "stop").closes
    datetime.time(6, 0)
    """
    if not is_zone(zone):
        raise InvalidRequest(
            "zone", f"{zone!r} is no time zone", legal="an IANA name such as Europe/Berlin"
        )
    if at_closing not in set(AtClosing):
        raise InvalidRequest(
            "at_closing", f"{at_closing!r} is no rule", legal=", ".join(sorted(AtClosing))
        )
    first, last = _wall_time("from", opens), _wall_time("to", closes)
    if first == last:
        raise InvalidRequest(
            "to", f"the window would end where it begins, at {closes}", legal="another time"
        )
    return NightWindow(zone, first, last, AtClosing(at_closing))


def is_zone(name: str) -> bool:
    """Whether this machine knows a time zone."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # An unknown name, an illegal name, or a directory of names such as "Europe".
        return False
    return True


def window_state(window: NightWindow, instant: datetime) -> WindowState:
    """Return the state of a window at an instant; it is open from `opens_at` until `closes_at`.

    >>> berlin = NightWindow("Europe/Berlin", time(22), time(6))
    >>> noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    >>> window_state(berlin, noon).opens_at
    datetime.datetime(2026, 7, 1, 20, 0, tzinfo=datetime.timezone.utc)
    """
    zone = ZoneInfo(window.zone)
    today = instant.astimezone(zone).date()
    nights = list(_nights(window, zone, today))
    # The days searched always contain a night that has ended and one that has not.
    closed_at = max(closes_at for _, closes_at in nights if closes_at <= instant)
    opens_at, closes_at = next(night for night in nights if instant < night[1])
    return WindowState(opens_at <= instant, opens_at, closes_at, closed_at)


class WindowOpenings:
    """Computes when a window is open, in seconds after a start instant.

    A call with a moment returns the first moment from then on at which the window is open; infinity
    if the time zone is unknown.
    """

    def __init__(self, window: NightWindow, instant: datetime) -> None:
        self._window = window
        self._instant = instant
        self._opens: list[float] = []
        self._closes: list[float] = []
        self._is_known = is_zone(window.zone)

    def __call__(self, moment: float) -> float:
        """Return the first moment from `moment` on at which the window is open.

        >>> noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
        >>> nights = WindowOpenings(NightWindow("UTC", time(22), time(6)), noon)
        >>> nights(0) / 3600, nights(11 * 3600) / 3600, nights(18 * 3600) / 3600
        (10.0, 11.0, 34.0)
        """
        if not self._is_known:
            return inf
        while not self._closes or self._closes[-1] <= moment:
            self._add_next_night()
        return max(moment, self._opens[bisect_right(self._closes, moment)])

    def _add_next_night(self) -> None:
        last = self._closes[-1] if self._closes else 0.0
        state = window_state(self._window, self._instant + timedelta(seconds=last))
        self._opens.append((state.opens_at - self._instant).total_seconds())
        self._closes.append((state.closes_at - self._instant).total_seconds())


def night_after(window: NightWindow | None, instant: datetime) -> datetime:
    """Return when the next night of the night budget starts: when the window opens.

    Without a window, or with an unknown time zone, a night is a day in UTC.

    >>> night_after(None, datetime(2026, 7, 1, 12, tzinfo=UTC))
    datetime.datetime(2026, 7, 2, 0, 0, tzinfo=datetime.timezone.utc)
    """
    is_known = window is not None and is_zone(window.zone)
    zone, opens = (ZoneInfo(window.zone), window.opens) if window and is_known else _UTC_DAY
    today = instant.astimezone(zone).date()
    beginnings = (instant_of(zone, today + timedelta(days=days), opens) for days in range(3))
    return next(begins for begins in beginnings if begins > instant)


def night_bounds(window: NightWindow | None, day: date) -> tuple[datetime, datetime, datetime]:
    """Return when the night of a local day opens and closes, and when the next one opens.

    Without a window, or with an unknown time zone, a night is a day in UTC.

    >>> berlin = NightWindow("Europe/Berlin", time(22), time(6))
    >>> [f"{instant:%d %H}" for instant in night_bounds(berlin, date(2026, 11, 16))]
    ['16 21', '17 05', '17 21']
    """
    if window is None or not is_zone(window.zone):
        zone, opens = _UTC_DAY
        begin, end = (instant_of(zone, day + timedelta(days=days), opens) for days in (0, 1))
        return begin, end, end
    zone = ZoneInfo(window.zone)
    overnight = timedelta(days=int(window.closes < window.opens))
    opens_at = instant_of(zone, day, window.opens)
    closes_at = instant_of(zone, day + overnight, window.closes)
    next_at = instant_of(zone, day + timedelta(days=1), window.opens)
    return opens_at, max(opens_at, closes_at), max(next_at, closes_at)


def latest_night(window: NightWindow | None, instant: datetime) -> date:
    """Return the local day of the night that opened last.

    >>> latest_night(None, datetime(2026, 7, 1, 12, tzinfo=UTC))
    datetime.date(2026, 7, 1)
    """
    is_known = window is not None and is_zone(window.zone)
    zone, opens = (ZoneInfo(window.zone), window.opens) if window and is_known else _UTC_DAY
    today = instant.astimezone(zone).date()
    days = (today - timedelta(days=back) for back in range(3))
    return next(day for day in days if instant_of(zone, day, opens) <= instant)


def instant_of(zone: ZoneInfo, day: date, wall: time) -> datetime:
    """Return when a zone's clocks first show a time on a day, or when they skip it."""
    early, late = (datetime.combine(day, wall, zone).replace(fold=fold) for fold in (0, 1))
    first, last = early.astimezone(UTC), late.astimezone(UTC)
    if last >= first:
        return first
    # Skipped: with the offset before the change it lies after the change, and vice versa.
    return _jump_between(zone, last, first)


def _nights(
    window: NightWindow, zone: ZoneInfo, today: date
) -> Iterator[tuple[datetime, datetime]]:
    """Yield the nights around a day in order, without nights that the clocks skip."""
    overnight = timedelta(days=int(window.closes < window.opens))
    for offset in range(-_DAYS_BACK, _DAYS_ON):
        day = today + timedelta(days=offset)
        opens_at = instant_of(zone, day, window.opens)
        closes_at = instant_of(zone, day + overnight, window.closes)
        if opens_at < closes_at:
            yield opens_at, closes_at


def _jump_between(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Return the instant at which a zone's offset changes, to the second."""
    old = before.astimezone(zone).utcoffset()
    while after - before > _SECOND:
        middle = before + (after - before) // 2
        middle = middle.replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == old:
            before = middle
        else:
            after = middle
    return after


def _wall_time(field: str, text: str) -> time:
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise InvalidRequest(field, f"{text!r} is no time of day", legal="HH:MM such as 22:00")
    return time(int(match[1]), int(match[2]))
