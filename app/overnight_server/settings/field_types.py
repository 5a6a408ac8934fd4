"""Types and annotations of settings: ranges, secrets, further names, and their descriptions."""

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
Annotation = TypeVar("Annotation")


@dataclass(frozen=True)
class NumberRange:
    """The lowest and the highest legal value of a number."""

    lowest: float
    highest: float
    # Tests and drills may set shorter durations, so that they need not wait for minutes.
    is_duration: bool = False

    def contains(self, value: float, *, short: bool) -> bool:
        """Return whether a value is legal; `short` removes the lower limit of a duration."""
        if short and self.is_duration:
            return 0 < value <= self.highest
        return self.lowest <= value <= self.highest

    def describe(self, kind: str, *, short: bool = False) -> str:
        """Return a text that says which values are legal."""
        low = "above 0" if short and self.is_duration else f"from {self.lowest:g}"
        return f"{kind} {low} to {self.highest:.15g}"


def duration(lowest: float, highest: float) -> NumberRange:
    """Return the range of a duration in seconds."""
    return NumberRange(lowest, highest, is_duration=True)


@dataclass(frozen=True)
class Secret:
    """Marks a setting that is never shown and can be read from the file in `<NAME>_FILE`."""


@dataclass(frozen=True)
class LegalValues:
    """Describes the legal values where the type does not."""

    description: str


@dataclass(frozen=True)
class Alias:
    """Gives a setting a second environment name, from the original interface specification."""

    env: str


_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(value: object) -> object:
    """Convert a duration to seconds: a number of seconds, or amounts with units.

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


def lower_case(value: object) -> object:
    """Convert a name of a closed set to lower case."""
    return value.strip().lower() if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(seconds_of)]
Names = Annotated[tuple[str, ...], BeforeValidator(names_of)]
LowerCase = BeforeValidator(lower_case)


def is_loopback(host: str) -> bool:
    """Return whether a host, as a bind address or in a URL, can only be this machine.

    >>> [is_loopback(host) for host in ("127.0.0.1", "[::1]", "localhost", "0.0.0.0", "a.example")]
    [True, True, True, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def annotation_of(field: FieldInfo, kind: type[Annotation]) -> Annotation | None:
    """Return the field's annotation of this kind; None if it has none."""
    return next((item for item in field.metadata if isinstance(item, kind)), None)


def aliases(field: FieldInfo) -> list[str]:
    """Return the further environment names of a field."""
    return [item.env for item in field.metadata if isinstance(item, Alias)]


def env_of(name: str) -> str:
    """Return the environment name of a setting."""
    return f"{PREFIX}{name.upper()}"


def describe_legal_values(field: FieldInfo, *, short: bool = False) -> str:
    """Return a text that says which values a field accepts."""
    legal, limits = annotation_of(field, LegalValues), annotation_of(field, NumberRange)
    if legal:
        return legal.description
    types = _types(field)
    if limits:
        number = "a whole number" if int in types else "a number"
        return limits.describe("seconds" if limits.is_duration else number, short=short)
    if choices(field):
        return f"one of {', '.join(choices(field))}"
    if get_origin(types[0]) is tuple:
        return "names separated by commas"
    return "true or false" if bool in types else "a path" if Path in types else "text"


def choices(field: FieldInfo) -> tuple[str, ...]:
    """Return the names that a field of a closed set accepts; empty for other fields."""
    return tuple(get_args(field.annotation)) if get_origin(field.annotation) is Literal else ()


def nearest_legal(field: FieldInfo, value: object) -> str | None:
    """Return the legal value nearest to a wrong one; None if there is none."""
    if names := choices(field):
        return nearest_name(str(value).lower(), names)
    limits = annotation_of(field, NumberRange)
    try:
        number = float(str(seconds_of(value)))
    except ValueError:
        return None
    if limits is None or isnan(number):
        return None
    # Bounded before rounding, because an infinite number cannot be rounded.
    bounded = min(max(number, limits.lowest), limits.highest)
    return f"{round(bounded) if int in _types(field) else bounded:.15g}"


def nearest_name(name: str, names: Iterable[str]) -> str:
    """Return the one of `names` that is most similar to a name."""
    [best] = difflib.get_close_matches(name, list(names), n=1, cutoff=0)
    return best


def display_value(field: FieldInfo, value: object) -> str:
    """Return a value as text for people; secrets are masked, in addresses only the password."""
    if value is None:
        return NOT_SET
    if annotation_of(field, Secret):
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
