"""Reading what people type: durations, JSON, and text that may come from a file or from stdin."""

import json
import re
import sys
from datetime import datetime, timedelta
from pathlib import Path

import typer

_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
OR_DURATION = "8h, 07:00 or 2030-01-31T07:00Z"
_LONGEST = 10 * 365 * _UNITS["d"]


def seconds(text: str | int) -> int:
    """Read a duration such as `90`, `45s`, `30m`, `1h30m` or `2d`, and return its seconds.

    A default passes through here too, and is a number already.

    >>> seconds("1h30m")
    5400
    """
    if isinstance(text, int):
        return text
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or not any(match.groups()):
        raise typer.BadParameter(f"{text!r} is no duration; write 90, 45s, 30m, 1h30m or 2d")
    total = sum(
        int(number or 0) * unit
        for number, unit in zip(match.groups(), _UNITS.values(), strict=True)
    )
    if total > _LONGEST:
        raise typer.BadParameter(f"{text!r} is too long; the longest duration is 3650d")
    if total <= 0:
        raise typer.BadParameter(f"{text!r} is too short; the shortest duration is 1s")
    return total


def instant(text: str, *, legal: str = "07:00 or 2030-01-31T07:00Z") -> datetime:
    """Read an instant such as `07:00` (the next one, here) or `2030-01-31T07:00Z`.

    `legal` is what to write instead of one that cannot be read.
    """
    now = datetime.now().astimezone()
    if clock := _CLOCK.fullmatch(text.strip()):
        hour, minute = map(int, clock.groups())
        today = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return today if today > now else _same_time_tomorrow(today)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        message = f"{text!r} is no instant; write {legal}"
        raise typer.BadParameter(message) from error
    return at.astimezone()


def moment(text: str) -> datetime:
    """Read an instant of any time: `2030-01-31T07:00Z`, `07:00` (the last one), or `8h` ago."""
    if _DURATION.fullmatch(text.strip().lower()) and text.strip():
        return datetime.now().astimezone() - timedelta(seconds=seconds(text))
    at = instant(text, legal=OR_DURATION)
    if _CLOCK.fullmatch(text.strip()):
        return (at.replace(tzinfo=None) - timedelta(days=1)).astimezone()
    return at


def coming(text: str) -> datetime:
    """Read an instant that lies ahead."""
    return _ahead(text, instant(text))


def _ahead(text: str, at: datetime) -> datetime:
    if at <= datetime.now().astimezone():
        raise typer.BadParameter(f"{text!r} has passed; name a time that is still to come")
    return at


def deadline(text: str) -> datetime:
    """Read an instant that lies ahead, or a duration from now such as `8h`."""
    if _DURATION.fullmatch(text.strip().lower()) and text.strip():
        return datetime.now().astimezone() + timedelta(seconds=seconds(text))
    return _ahead(text, instant(text, legal=OR_DURATION))


def _same_time_tomorrow(at: datetime) -> datetime:
    # By the clock on the wall, which a change of summer time moves against the sun.
    return (at.replace(tzinfo=None) + timedelta(days=1)).astimezone()


def text_of(given: str) -> str:
    """Return the text itself, or what `@file` or `-` (stdin) holds."""
    if given == "-":
        try:
            return sys.stdin.read()
        except UnicodeDecodeError as error:
            raise typer.BadParameter("cannot read stdin: it is not UTF-8 text") from error
    if not given.startswith("@"):
        return given
    path = Path(given[1:]).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"cannot read {path}: it is not UTF-8 text") from error


def json_object(given: str) -> dict[str, object]:
    """Read a JSON object from the text itself, from `@file` or from `-` (stdin)."""
    try:
        value = json.loads(text_of(given), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter('the payload must be a JSON object, such as {"hello": "world"}')
    return value


def _refuse_constant(name: str) -> None:
    # Python reads NaN and Infinity, but Postgres and everybody else refuse them.
    raise typer.BadParameter(f"not valid JSON: {name} is no JSON number")
