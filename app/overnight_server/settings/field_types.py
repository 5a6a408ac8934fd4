"""What a setting may be: the marks a field carries, and what they say about its values."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from math import isnan
from pathlib import Path
from types import UnionType
from typing import Annotated, Literal, TypeVar, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from overnight_server.mask import MASK, mask_text

PREFIX = "OVERNIGHT_"
NOT_SET = "not set"
Mark = TypeVar("Mark")


@dataclass(frozen=True)
class Span:
    """The least and the greatest legal value of a number."""

    least: float
    most: float
    # A clock's least value may be lifted, so that tests and drills need not wait for minutes.
    is_clock: bool = False

    def admits(self, value: float, *, short: bool) -> bool:
        """Tell whether a value is legal; `short` lifts the least value of a clock."""
        if short and self.is_clock:
            return 0 < value <= self.most
        return self.least <= value <= self.most

    def words(self, kind: str, *, short: bool = False) -> str:
        """Say in words what is legal."""
        low = "above 0" if short and self.is_clock else f"from {self.least:g}"
        return f"{kind} {low} to {self.most:.15g}"


def clock(least: float, most: float) -> Span:
    """Bound a duration in seconds."""
    return Span(least, most, is_clock=True)


@dataclass(frozen=True)
class Secret:
    """Marks a value that is never shown and may also come from the file `<NAME>_FILE` names."""


@dataclass(frozen=True)
class Legal:
    """Says what is legal where the type alone does not."""

    words: str


@dataclass(frozen=True)
class Also:
    """Gives a setting a further name, as another design document calls it."""

    env: str


_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(value: object) -> object:
    """Read a duration: a number of seconds, or amounts with units.

    >>> [seconds_of(text) for text in ("30s", "1m30s", "1.5h")]
    [30.0, 90.0, 5400.0]
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        text = value.strip().lower().replace(" ", "")
        if text and not _AMOUNT.sub("", text):
            return float(sum(float(n) * _UNITS[unit] for n, unit in _AMOUNT.findall(text)))
    return value


def names_of(value: object) -> object:
    """Split names at commas.

    >>> names_of("gpu, web-search")
    ('gpu', 'web-search')
    """
    if isinstance(value, str):
        return tuple(filter(None, (part.strip() for part in value.split(","))))
    return value


def word_of(value: object) -> object:
    """Read a word of a closed set, in capitals or not."""
    return value.strip().lower() if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(seconds_of)]
Names = Annotated[tuple[str, ...], BeforeValidator(names_of)]
Word = BeforeValidator(word_of)


def is_loopback(host: str) -> bool:
    """Whether a host, as a bind address or in a URL, can only be this machine.

    >>> [is_loopback(host) for host in ("127.0.0.1", "[::1]", "localhost", "0.0.0.0", "a.example")]
    [True, True, True, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def mark_of(field: FieldInfo, kind: type[Mark]) -> Mark | None:
    """Return the mark of this kind that a field carries."""
    return next((mark for mark in field.metadata if isinstance(mark, kind)), None)


def other_names(field: FieldInfo) -> list[str]:
    """Return the further environment names of a field."""
    return [mark.env for mark in field.metadata if isinstance(mark, Also)]


def env_of(name: str) -> str:
    """Return the environment name of a setting."""
    return f"{PREFIX}{name.upper()}"


def legal_words(field: FieldInfo, *, short: bool = False) -> str:
    """Say what values a field takes."""
    legal, span = mark_of(field, Legal), mark_of(field, Span)
    if legal:
        return legal.words
    types = _types(field)
    if span:
        whole = "a whole number" if int in types else "a number"
        return span.words("seconds" if span.is_clock else whole, short=short)
    if choices(field):
        return f"one of {', '.join(choices(field))}"
    if get_origin(types[0]) is tuple:
        return "names separated by commas"
    return "true or false" if bool in types else "a path" if Path in types else "text"


def choices(field: FieldInfo) -> tuple[str, ...]:
    """Return the words a field of a closed set takes, or nothing."""
    return tuple(get_args(field.annotation)) if get_origin(field.annotation) is Literal else ()


def nearest_legal(field: FieldInfo, given: object) -> str | None:
    """Name the legal value nearest to a wrong one, if there is such a thing."""
    if words := choices(field):
        return nearest_word(str(given).lower(), words)
    span = mark_of(field, Span)
    try:
        number = float(str(seconds_of(given)))
    except ValueError:
        return None
    if span is None or isnan(number):
        return None
    # An infinite number cannot be rounded, but it can be bounded first.
    bounded = min(max(number, span.least), span.most)
    return f"{round(bounded) if int in _types(field) else bounded:.15g}"


def nearest_word(given: str, known: Iterable[str]) -> str:
    """Return the known word most like a given one."""
    [best] = difflib.get_close_matches(given, list(known), n=1, cutoff=0)
    return best


def shown(field: FieldInfo, value: object) -> str:
    """Write a value for people: an address without its password, any other secret not at all."""
    if value is None:
        return NOT_SET
    if mark_of(field, Secret):
        text = str(value)
        return mask_text(text) if "://" in text else MASK
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or NOT_SET
    return str(value)


def _types(field: FieldInfo) -> tuple[object, ...]:
    """Return the type of a field, or both sides of `X | None`."""
    annotation: object = field.annotation
    return get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
