"""Parse arguments: durations, instants, JSON, and text from a file or from stdin."""

import json
import re
import shlex
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
    """Parse a duration such as `90`, `45s`, `30m`, `1h30m` or `2d`, and return its seconds.

    Typer also passes the default value, which is an int, through this parser.

    >>> seconds("1h30m")
    5400
    """
    if isinstance(text, int):
        return text
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or not any(match.groups()):
        raise typer.BadParameter(f"{text!r} is not a duration; write 90, 45s, 30m, 1h30m or 2d")
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
    """Parse an instant such as `07:00` (the next one, local time) or `2030-01-31T07:00Z`.

    `legal` shows the accepted forms in the error message.
    """
    now = datetime.now().astimezone()
    if clock := _CLOCK.fullmatch(text.strip()):
        hour, minute = map(int, clock.groups())
        today = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return today if today > now else _same_time_tomorrow(today)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        message = f"{text!r} is not an instant; write {legal}"
        raise typer.BadParameter(message) from error
    return at.astimezone()


def past_instant(text: str) -> datetime:
    """Parse an instant such as `2030-01-31T07:00Z`, `07:00` (the latest one), or `8h` (ago)."""
    if _DURATION.fullmatch(text.strip().lower()) and text.strip():
        return datetime.now().astimezone() - timedelta(seconds=seconds(text))
    at = instant(text, legal=OR_DURATION)
    if _CLOCK.fullmatch(text.strip()):
        return (at.replace(tzinfo=None) - timedelta(days=1)).astimezone()
    return at


def future_instant(text: str) -> datetime:
    """Parse an instant; raise BadParameter if it is in the past."""
    return _check_future(text, instant(text))


def _check_future(text: str, at: datetime) -> datetime:
    if at <= datetime.now().astimezone():
        raise typer.BadParameter(f"{text!r} is in the past; write a future time")
    return at


def next_instant(text: str) -> datetime | None:
    """Return the instant that a time of day (the next one, local) or a duration from now means.

    Return None for any other text.
    """
    stripped = text.strip().lower()
    if not _CLOCK.fullmatch(stripped) and not (stripped and _DURATION.fullmatch(stripped)):
        return None
    return deadline(stripped)


def deadline(text: str) -> datetime:
    """Parse a future instant, or a duration from now such as `8h`."""
    if _DURATION.fullmatch(text.strip().lower()) and text.strip():
        return datetime.now().astimezone() + timedelta(seconds=seconds(text))
    return _check_future(text, instant(text, legal=OR_DURATION))


def validator(text: str) -> dict[str, object]:
    """Parse a validator of outputs: its method and its value, such as `size=1000`.

    >>> validator("test-pass=pytest -q")
    {'method': 'test-pass', 'argv': ['pytest', '-q']}
    """
    method, _, value = text.partition("=")
    match method:
        case "size":
            if not value.isdecimal():
                raise typer.BadParameter(f"{value!r} is no number of bytes; write size=100000")
            return {"method": method, "max_bytes": int(value)}
        case "json-schema":
            return {"method": method, "schema": json_object(value)}
        case "regex":
            return {"method": method, "pattern": value}
        case "test-pass":
            return {"method": method, "argv": _words(value)}
        case "none" if not value:
            return {"method": method}
        case _:
            legal = "size=BYTES, json-schema=@FILE, regex=PATTERN or test-pass=COMMAND"
            raise typer.BadParameter(f"{text!r} is no validator; write {legal}")


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise typer.BadParameter(f"{command!r} is no command: {error}") from error
    if not words:
        raise typer.BadParameter("the command is empty; write test-pass='pytest -q'")
    return words


def _same_time_tomorrow(at: datetime) -> datetime:
    # Computed without a zone, so that the time of day stays the same across a change of the clocks.
    return (at.replace(tzinfo=None) + timedelta(days=1)).astimezone()


def text_of(argument: str) -> str:
    """Return the argument itself, or the text of the file in `@file`, or stdin for `-`."""
    if argument == "-":
        try:
            return sys.stdin.read()
        except UnicodeDecodeError as error:
            raise typer.BadParameter("cannot read stdin: it is not UTF-8 text") from error
    if not argument.startswith("@"):
        return argument
    path = Path(argument[1:]).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"cannot read {path}: it is not UTF-8 text") from error


def repository(argument: str) -> str:
    """Return a URL as it is, and a path as the absolute path of the repository that has it.

    An absolute path that does not exist here may be one of the worker's machine.
    """
    if "://" in argument:
        return argument
    path = Path(argument).expanduser()
    resolved = path.resolve()
    if path.is_absolute() and not resolved.exists():
        return str(resolved)
    for directory in (resolved, *resolved.parents):
        if (directory / ".git").exists() or _is_bare_repository(directory):
            return str(directory)
    raise typer.BadParameter(
        f"{resolved} is in no git repository; name the directory of one, or an https URL"
    )


def _is_bare_repository(directory: Path) -> bool:
    return (directory / "HEAD").is_file() and (directory / "objects").is_dir()


def json_object(argument: str) -> dict[str, object]:
    """Parse a JSON object from the argument itself, from `@file`, or from stdin for `-`."""
    try:
        value = json.loads(text_of(argument), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter('the payload must be a JSON object, such as {"hello": "world"}')
    return value


def _refuse_constant(name: str) -> None:
    # Python parses NaN and Infinity, but JSON does not have them and Postgres refuses them.
    raise typer.BadParameter(f"not valid JSON: {name} is not a JSON number")
