"""The words of schedules: `every weekday at 22:00` becomes a cron expression, and back a sentence.

A schedule is written as a cron expression of five fields, as plain words, as an interval, or as one
instant. Words become cron expressions where a cron expression says the same.
"""

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim

from overnight.errors import InvalidRequest
from overnight_server.domain.fire_times import (
    FIELDS,
    LONGEST_INTERVAL,
    SHORTEST_GAP,
    Cron,
    Interval,
    Once,
    Timing,
    check_cron,
)
from overnight_server.domain.windows import instant_of, is_zone

FIELD = "when"
LEGAL = (
    '"every weekday at 22:00", "every monday and friday at 9am", "on the 1st at 06:00",'
    ' "every 90 minutes", "0 22 * * 1-5", "2030-01-31 07:00" or "tomorrow at 07:00"'
)
MACROS = {
    "hourly": "0 * * * *",
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
LAST_YEAR = 2999
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september"),
    *("october", "november", "december"),
)
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5}
_UNITS = {"minute": 60, "min": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400}
_MINUTES, _HOURS = 60, 24
_NOON = 12

_DAY = rf"(?:{'|'.join(f'{day[:3]}(?:{day[3:]}s?)?' for day in _DAYS)})"
_MONTH = rf"(?:{'|'.join(f'{month[:3]}(?:{month[3:]})?' for month in _MONTHS)})"
_NTH = rf"(?:\d{{1,2}}(?:st|nd|rd|th)?|{'|'.join(_ORDINALS)})"
_CLOCK = r"(?:\d{1,2}(?::\d{2})?\s?(?:am|pm)|\d{1,2}:\d{2}|noon|midnight)"
_AND = r"(?:\s*,\s*(?:and\s+)?|\s+and\s+)"
_CLOCKS = rf"{_CLOCK}(?:{_AND}{_CLOCK})*"
_INTERVAL = re.compile(
    r"every\s+(?:(?P<count>\d{1,6})\s+(?P<unit>minute|min|hour|day|week)s?|(?P<one>minute|hour))",
    re.ASCII,
)
_IN = re.compile(r"in\s+(?P<count>\d{1,6})\s+(?P<unit>minute|min|hour|day|week)s?", re.ASCII)
_ONCE = re.compile(
    rf"(?:(?:once|at|on)\s+)*(?P<day>today|tonight|tomorrow|\d{{4}}-\d{{2}}-\d{{2}})(?:\s+|t)"
    rf"(?:at\s+)?(?P<clock>{_CLOCK}|\d{{2}}:\d{{2}}:\d{{2}})",
    re.ASCII,
)
_TIMES = re.compile(rf"(?:^|\s)(?:at\s+)?(?P<clocks>{_CLOCKS})(?=\s|$)", re.ASCII)
_WEEKDAYS = re.compile(rf"{_DAY}(?:{_AND}{_DAY})*", re.ASCII)
_RANGE = re.compile(rf"({_DAY})\s*(?:-|to|through)\s*({_DAY})", re.ASCII)
_NTH_DAY = re.compile(rf"(?P<nth>{_NTH}|last)\s+(?P<day>{_DAY})", re.ASCII)
_MONTH_DAYS = re.compile(rf"(?P<days>{_NTH}(?:{_AND}{_NTH})*|last)(?:\s+days?)?", re.ASCII)
_YEAR_DAY = re.compile(rf"(?:({_NTH})\s+({_MONTH})|({_MONTH})\s+({_NTH}))", re.ASCII)
# Words between the parts of a sentence that decide nothing.
_FILLERS = re.compile(
    r"\b(?:every|each|on|the|of|in|day of|month|monthly|of the month|yearly|year)\b"
)


def parse_when(text: str, zone: str, now: datetime) -> Timing:
    """Parse what a user wrote as the time of a schedule; raise InvalidRequest that names `when`.

    >>> now = datetime(2026, 7, 1, 12, tzinfo=UTC)
    >>> parse_when("every weekday at 22:00", "Europe/Berlin", now)
    Cron(expression='0 22 * * 1-5', zone='Europe/Berlin')
    >>> parse_when("every 90 minutes", "UTC", now).every
    datetime.timedelta(seconds=5400)
    >>> parse_when("2026-07-02 07:00", "Europe/Berlin", now).at.isoformat()
    '2026-07-02T05:00:00+00:00'
    """
    if not is_zone(zone):
        raise InvalidRequest(
            "zone", f"{zone!r} is no time zone", legal="an IANA name such as Europe/Berlin"
        )
    words = " ".join(text.lower().split())
    if (instant := _instant(text, words, zone, now)) is not None:
        if instant <= now:
            at = f"{instant:%Y-%m-%d %H:%M}Z"
            raise InvalidRequest(FIELD, f"{text!r} ({at}) has passed", legal="a future time")
        return Once(instant)
    if (every := _INTERVAL.fullmatch(words)) is None:
        expression = MACROS.get(words) or _cron(text, words)
    elif (regular := _regular_cron(every)) is not None:
        expression = regular
    else:
        return _interval(text, every, now)
    if (fault := check_cron(expression)) is not None:
        raise InvalidRequest(FIELD, f"{text!r}: {fault}", legal=LEGAL)
    return Cron(expression, zone)


def describe(timing: Timing) -> str:
    """Return a sentence about a timing, for people.

    >>> describe(Cron("0 22 * * 1-5", "Europe/Berlin"))
    'At 22:00 on Monday through Friday, Europe/Berlin time'
    >>> describe(Interval(timedelta(minutes=90), datetime(2026, 7, 1, tzinfo=UTC)))
    'Every 90 minutes'
    """
    match timing:
        case Cron(expression, zone):
            sentence = CronSim(expression, datetime(2000, 1, 1)).explain()  # noqa: DTZ001 - unused
            # The library writes 21th and 31th.
            sentence = re.sub(r"\b(\d*[02-9])?([123])th\b", _ordinal, sentence)
            return f"{sentence}, {zone} time"
        case Interval(every, _):
            seconds = int(every.total_seconds())
            name, length = next(
                (name, length)
                for name, length in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))
                if seconds % length == 0
            )
            count = seconds // length
            return f"Every {name}" if count == 1 else f"Every {count} {name}s"
        case Once(at):
            return f"Once, on {at.astimezone(UTC):%Y-%m-%d at %H:%M} UTC"


def time_in_words(instant: datetime, zone: str) -> str:
    """Return an instant in the local time of a zone, for people.

    >>> time_in_words(datetime(2026, 7, 1, 20, tzinfo=UTC), "Europe/Berlin")
    'Wed 1 Jul 2026, 22:00 CEST'
    """
    local = instant.astimezone(ZoneInfo(zone))
    seconds = f":{local:%S}" if local.second else ""
    return f"{local:%a} {local.day} {local:%b %Y, %H:%M}{seconds} {local:%Z}"


def _instant(text: str, words: str, zone: str, now: datetime) -> datetime | None:
    """Return the instant that a text names; None if it names none."""
    try:
        if after := _IN.fullmatch(words):
            instant = now.replace(microsecond=0) + _duration(after)
        elif match := _ONCE.fullmatch(words):
            local = ZoneInfo(zone)
            instant = instant_of(local, _day(match["day"], now, local), _clock(match["clock"]))
        elif (exact := _exact(text)) is not None:
            instant = exact
        else:
            return None
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(FIELD, f"{text!r}: {error}", legal=LEGAL) from None
    if instant.year > LAST_YEAR:
        raise InvalidRequest(FIELD, f"{text!r} is too late", legal=f"by the year {LAST_YEAR}")
    return instant


def _exact(text: str) -> datetime | None:
    """Return an instant with an offset from UTC; None for any other text."""
    try:
        at = datetime.fromisoformat(text.strip().upper())
    except ValueError:
        return None
    return None if at.tzinfo is None else at.astimezone(UTC).replace(microsecond=0)


def _day(written: str, now: datetime, zone: ZoneInfo) -> date:
    today = now.astimezone(zone).date()
    match written:
        case "today" | "tonight":
            return today
        case "tomorrow":
            return today + timedelta(days=1)
        case _:
            return date.fromisoformat(written)


def _regular_cron(every: re.Match[str]) -> str | None:
    """Return the cron expression of `every 15 minutes`; None if no expression says it."""
    count, unit = _count_and_unit(every)
    if count == 1:
        return {"minute": "* * * * *", "min": "* * * * *", "hour": "0 * * * *"}.get(unit)
    if unit in {"minute", "min"} and count and _MINUTES % count == 0 and count < _MINUTES:
        return f"*/{count} * * * *"
    if unit == "hour" and count and _HOURS % count == 0 and count < _HOURS:
        return f"0 */{count} * * *"
    return None


def _interval(text: str, every: re.Match[str], now: datetime) -> Interval:
    duration = _duration(every)
    if not SHORTEST_GAP <= duration <= LONGEST_INTERVAL:
        raise InvalidRequest(
            FIELD, f"{text!r} is too short or too long", legal="every 1 minute to every 366 days"
        )
    return Interval(duration, now.replace(microsecond=0))


def _duration(match: re.Match[str]) -> timedelta:
    count, unit = _count_and_unit(match)
    return timedelta(seconds=count * _UNITS[unit])


def _count_and_unit(match: re.Match[str]) -> tuple[int, str]:
    return (int(match["count"]), match["unit"]) if match["count"] else (1, match["one"])


def _cron(text: str, words: str) -> str:
    """Return the cron expression of a text that is one, or of words about days and times."""
    if words == "@reboot":
        raise InvalidRequest(FIELD, "'@reboot' is no time", legal=LEGAL)
    if _looks_like_cron(words):
        return " ".join(text.split())
    found = list(_TIMES.finditer(words))
    if len(found) != 1:
        raise _not_understood(text, "names no time of day" if not found else "is not understood")
    [clocks] = found
    hours, minute = _hours_and_minute(text, clocks["clocks"])
    days = f"{words[: clocks.start()]} {words[clocks.end() :]}"
    return f"{minute} {hours} {_days(text, days)}"


def _looks_like_cron(words: str) -> bool:
    """Whether a text is meant as a cron expression, in which names have at most three letters."""
    names = re.findall(r"[a-z]+", words)
    has_short_names = all(len(name) <= len("mon") for name in names) and "at" not in names
    return "*" in words or not names or (has_short_names and len(words.split()) == FIELDS)


def _hours_and_minute(text: str, clocks: str) -> tuple[str, int]:
    times = [_clock(clock, text) for clock in re.split(_AND, clocks)]
    if len({at.minute for at in times}) > 1:
        raise _not_understood(
            text, "has times with different minutes, which need a schedule for each"
        )
    return _numbers(at.hour for at in times), times[0].minute


def _clock(text: str, whole: str | None = None) -> time:
    """Return a time of day such as `22:00`, `9am`, `9:30 pm`, `noon`."""
    match re.fullmatch(r"(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s?(am|pm)?", text):
        case None:
            return time(_NOON if text == "noon" else 0)
        case clock:
            hour, minute, second = (int(number or 0) for number in clock.groups()[:3])
            half = clock[4]
            if half and not 1 <= hour <= _NOON:
                raise _not_understood(whole or text, f"{text!r} is no time of day")
            if half:
                hour = hour % _NOON + (_NOON if half == "pm" else 0)
            try:
                return time(hour, minute, second)
            except ValueError:
                raise _not_understood(whole or text, f"{text!r} is no time of day") from None


def _days(text: str, words: str) -> str:
    """Return the last three fields of a cron expression for words about days."""
    plain = " ".join(_FILLERS.sub(" ", words).split()).strip(" ,")
    names = plain.replace("weekdays", "weekday").replace("weekends", "weekend")
    if names in {"", "day", "daily", "days"} and not re.search(r"month|year", words):
        return "* * *"
    if names in {"weekday", "weekly weekday"}:
        return "* * 1-5"
    if names == "weekend":
        return "* * 0,6"
    if match := _RANGE.fullmatch(names):
        first, last = _weekday(match[1]), _weekday(match[2])
        spanned = range(first, last + 1) if first <= last else (*range(first, 7), *range(last + 1))
        return f"* * {_numbers(spanned)}" if first > last else f"* * {first}-{last}"
    if _WEEKDAYS.fullmatch(names):
        return f"* * {_numbers(map(_weekday, re.split(_AND, names)))}"
    if match := _NTH_DAY.fullmatch(names):
        day = _weekday(match["day"])
        return f"* * {day}L" if match["nth"] == "last" else f"* * {day}#{_number(match['nth'])}"
    if match := _MONTH_DAYS.fullmatch(names):
        return "L * *" if match["days"] == "last" else f"{_numbers(_listed(match['days']))} * *"
    if match := _YEAR_DAY.fullmatch(names):
        nth, month = (match[1], match[2]) if match[1] else (match[4], match[3])
        return f"{_number(nth)} {_month(month)} *"
    raise _not_understood(text, "is not understood")


def _listed(days: str) -> Iterable[int]:
    return (_number(day) for day in re.split(_AND, days))


def _numbers(values: Iterable[int]) -> str:
    return ",".join(map(str, sorted(set(values))))


def _number(nth: str) -> int:
    return _ORDINALS.get(nth) or int(re.sub(r"\D", "", nth))


def _weekday(name: str) -> int:
    return next(number for number, day in enumerate(_DAYS) if day[:3] == name[:3])


def _month(name: str) -> int:
    return next(number for number, month in enumerate(_MONTHS, 1) if month[:3] == name[:3])


def _ordinal(match: re.Match[str]) -> str:
    ending = {"1": "st", "2": "nd", "3": "rd"}[match[2]]
    return f"{match[1] or ''}{match[2]}{ending}"


def _not_understood(text: str, why: str) -> InvalidRequest:
    return InvalidRequest(FIELD, f"{text!r} {why}", legal=LEGAL)
