"""What JSON we take in: nothing that Postgres, or another language, could not give back."""

import json
import math
from collections.abc import Iterator
from typing import Any

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
# Beyond 64 bits most languages lose digits without a word.
SMALLEST, LARGEST = -(2**63), 2**64 - 1


def sound_text(text: str) -> str:
    """Return the text if the database can store it, else say which character it cannot."""
    if "\x00" in text:
        raise ValueError("holds a NUL character (\\u0000), which the database cannot store")
    return whole_text(text)


def whole_text(text: str) -> str:
    """Return the text if every character is one, so that it can be written as bytes."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("holds half a surrogate pair, which is no character")
    return text


def sound_object(value: dict[str, Any]) -> dict[str, Any]:
    """Return the object if it is stored and given back unchanged, else say where it is not."""
    for path, inner in _walk(value):
        _refuse_unsound(path, inner)
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    if size > MAX_BYTES:
        raise ValueError(f"takes {size} bytes as JSON; at most {MAX_BYTES} are stored")
    return value


def sound_value(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return any JSON value that is stored and given back unchanged, else say where it is not."""
    for path, inner in _walk(value):
        _refuse_unsound(path, inner)
    return value


def _walk(value: object) -> Iterator[tuple[str, object]]:
    """Yield every value inside, with where it stands; deeper than allowed is an error.

    A list of what is still to see, not recursion: the depth is the sender's choice.
    """
    unseen: list[tuple[str, int, object]] = [("", 0, value)]
    while unseen:
        path, depth, inner = unseen.pop()
        yield path, inner
        if not isinstance(inner, dict | list | tuple):
            continue
        if depth >= MAX_DEPTH:
            raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")
        pairs = inner.items() if isinstance(inner, dict) else enumerate(inner)
        unseen += [(f"{path}.{key}"[:200], depth + 1, item) for key, item in pairs]


def _refuse_unsound(path: str, value: object) -> None:
    try:
        match value:
            case str():
                sound_text(value)
            case dict():
                _refuse_unsound_keys(value)
            case bool() | None | list() | tuple():
                pass
            case int() if not SMALLEST <= value <= LARGEST:
                raise ValueError("is a number beyond 64 bits; send it as text")  # noqa: TRY301
            case float() if not math.isfinite(value):
                raise ValueError("is not a finite number")  # noqa: TRY301
            case int() | float():
                pass
            case _:
                raise ValueError(f"is a {type(value).__name__}, which JSON does not know")  # noqa: TRY301
    except ValueError as error:
        where = path.removeprefix(".").encode("ascii", "backslashreplace").decode()
        raise ValueError(f"{where or 'the object'} {error}") from None


def _refuse_unsound_keys(value: dict[Any, Any]) -> None:
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"has the key {key!r}; a key in JSON is text")  # noqa: TRY004
        sound_text(key)
