"""Check that JSON values can be stored and read back unchanged."""

import json
import math
from collections.abc import Iterator
from typing import Any

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_PATH_LENGTH = 200
# Most languages silently lose digits of integers beyond 64 bits.
SMALLEST, LARGEST = -(2**63), 2**64 - 1


def check_text(text: str) -> str:
    """Return the text; raises ValueError if the database cannot store it."""
    if "\x00" in text:
        raise ValueError("holds a NUL character (\\u0000), which the database cannot store")
    return check_characters(text)


def check_characters(text: str) -> str:
    """Return the text; raises ValueError if it cannot be encoded as UTF-8."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("holds half a surrogate pair, which is no character")
    return text


def storable_text(text: str, limit: int) -> str:
    r"""Return the text without NUL, with `?` for halves of surrogate pairs, and cut at `limit`.

    >>> storable_text("a\x00b\ud800", 10)
    'ab?'
    """
    return text.replace("\x00", "")[:limit].encode(errors="replace").decode()


def check_object(value: dict[str, Any]) -> dict[str, Any]:
    """Return the object; raises ValueError if it is too large or cannot be stored unchanged."""
    for path, inner in _walk(value):
        _check_value(path, inner)
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    if size > MAX_BYTES:
        raise ValueError(f"takes {size} bytes as JSON; at most {MAX_BYTES} are stored")
    return value


def check_json(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON value; raises ValueError if it cannot be stored unchanged."""
    for path, inner in _walk(value):
        _check_value(path, inner)
    return value


def _walk(value: object) -> Iterator[tuple[list[object], object]]:
    """Yield every nested value with its path; raises ValueError beyond the maximum depth.

    It uses a stack of iterators, because the sender chooses depth and length: recursion could
    overflow, and a list of all values could fill the memory.
    """
    levels: list[Iterator[tuple[object, object]]] = [iter([("", value)])]
    path: list[object] = [""]
    while levels:
        for key, inner in levels[-1]:
            path[-1] = key
            yield path, inner
            if isinstance(inner, dict | list | tuple):
                if len(levels) > MAX_DEPTH:
                    raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")
                levels.append(iter(inner.items() if isinstance(inner, dict) else enumerate(inner)))
                path.append("")
                break
        else:
            levels.pop()
            path.pop()


def _check_value(path: list[object], value: object) -> None:
    try:
        match value:
            case str():
                check_text(value)
            case dict():
                _check_keys(value)
            case bool() | None | list() | tuple():
                pass
            case int() if not SMALLEST <= value <= LARGEST:
                raise ValueError("is a number beyond 64 bits; send it as text")  # noqa: TRY301
            case float() if not math.isfinite(value):
                raise ValueError("is not a finite number")  # noqa: TRY301
            case int() | float():
                pass
            case _:
                raise ValueError(f"is a {type(value).__name__}, which JSON does not have")  # noqa: TRY301
    except ValueError as error:
        keys = ".".join(map(str, path[1:]))[:MAX_PATH_LENGTH]
        where = keys.encode("ascii", "backslashreplace").decode()
        raise ValueError(f"{where or 'the object'} {error}") from None


def _check_keys(value: dict[Any, Any]) -> None:
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"has the key {key!r}; a key in JSON is text")  # noqa: TRY004
        check_text(key)
