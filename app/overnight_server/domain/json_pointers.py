"""JSON pointers (RFC 6901): paths such as `/body/items/0/name` into a JSON value."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

MAX_LENGTH: Final = 500
LEGAL: Final = "such as /body/action or /body/items/0; ~1 stands for / and ~0 for ~"
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


class PointerMissing(LookupError):
    """A JSON value has nothing at the place that a pointer names."""


def parse_pointer(text: str) -> tuple[str, ...]:
    """Return the steps of a pointer; raise ValueError for what is no pointer.

    >>> parse_pointer("/body/a~1b/0")
    ('body', 'a/b', '0')
    >>> parse_pointer("")
    ()
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"is longer than {MAX_LENGTH} characters")
    if text and not text.startswith("/"):
        raise ValueError("is no JSON pointer, because it does not begin with /")
    if _BAD_ESCAPE.search(text):
        raise ValueError("is no JSON pointer, because ~ is followed by neither 0 nor 1")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:])


def value_at(document: object, pointer: str) -> object:
    """Return the part of a JSON value that a pointer names; raise PointerMissing if there is none.

    >>> value_at({"items": [{"name": "first"}]}, "/items/0/name")
    'first'
    """
    value = document
    for step in parse_pointer(pointer):
        match value:
            case Mapping() if step in value:
                value = value[step]
            case Sequence() if not isinstance(value, str) and _is_index(step, len(value)):
                value = value[int(step)]
            case _:
                raise PointerMissing(pointer)
    return value


def _is_index(step: str, length: int) -> bool:
    return _INDEX.fullmatch(step) is not None and int(step) < length
