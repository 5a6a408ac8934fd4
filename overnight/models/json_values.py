"""What JSON we take in: nothing that Postgres, or another language, could not give back."""

import json
import math
from collections.abc import Iterator
from typing import Any

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_WHERE = 200
# Beyond 64 bits most languages lose digits without a word.
SMALLEST, LARGEST = -(2**63), 2**64 - 1


def check_text(text: str) -> str:
    """Return the text if the database can store it, else say which character it cannot."""
    if "\x00" in text:
        raise ValueError("holds a NUL character (\\u0000), which the database cannot store")
    return check_characters(text)


def check_characters(text: str) -> str:
    """Return the text if every character is one, so that it can be written as bytes."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("holds half a surrogate pair, which is no character")
    return text


def check_object(value: dict[str, Any]) -> dict[str, Any]:
    """Return the object if it is stored and given back unchanged, else say where it is not."""
    for path, inner in _walk(value):
        _refuse_unsound(path, inner)
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    if size > MAX_BYTES:
        raise ValueError(f"takes {size} bytes as JSON; at most {MAX_BYTES} are stored")
    return value


def check_json(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return any JSON value that is stored and given back unchanged, else say where it is not."""
    for path, inner in _walk(value):
        _refuse_unsound(path, inner)
    return value


def _walk(value: object) -> Iterator[tuple[list[object], object]]:
    """Yield every value inside, with the keys that lead to it; deeper than allowed is an error.

    A list of what is half seen, not recursion: the depth is the sender's choice. So is the length,
    hence nothing is made for an item before its turn.
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


def _refuse_unsound(path: list[object], value: object) -> None:
    try:
        match value:
            case str():
                check_text(value)
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
        keys = ".".join(map(str, path[1:]))[:MAX_WHERE]
        where = keys.encode("ascii", "backslashreplace").decode()
        raise ValueError(f"{where or 'the object'} {error}") from None


def _refuse_unsound_keys(value: dict[Any, Any]) -> None:
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"has the key {key!r}; a key in JSON is text")  # noqa: TRY004
        check_text(key)
