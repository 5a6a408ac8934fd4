"""What commands print: tables for people, plain columns for pipes, JSON for programs."""

import json
import shlex
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

# Colour only repeats what the word beside it already says.
_COLOURS = {
    "completed": "green",
    "ok": "green",
    "running": "cyan",
    "validating": "cyan",
    "claimed": "cyan",
    "retrying": "yellow",
    "warning": "yellow",
    "failed": "red",
    "dead_lettered": "red",
    "cancelled": "dim",
}
# Control, format, surrogate and separator characters: they act instead of being seen.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Joins emoji, and does nothing else.
_JOINER = "\u200d"
_IN_LINES = ContextVar("in_lines", default=False)


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at this stream."""
    return stream.isatty()


@contextmanager
def in_lines() -> Iterator[None]:
    """Print each item of a document on a line of its own while the context is open."""
    before = _IN_LINES.set(True)
    try:
        yield
    finally:
        _IN_LINES.reset(before)


def document(value: object) -> None:
    """Print one JSON document on stdout."""
    if _IN_LINES.get():
        documents(value if isinstance(value, list) else [value])
        return
    _write(json.dumps(value, indent=2, ensure_ascii=False, default=_for_json))


def documents(values: Iterable[object]) -> None:
    """Print one JSON document per line on stdout."""
    for value in values:
        _write(json.dumps(value, ensure_ascii=False, default=_for_json))


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "") -> None:
    """Print rows under headers; `empty` is said on stderr when there are none."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells and empty:
        note(empty)
        return
    if is_terminal(sys.stdout):
        _draw(headers, cells)
    else:
        _align([list(headers), *cells])


def record(fields: Mapping[str, object]) -> None:
    """Print one thing as a list of its known fields."""
    known = {name: value for name, value in fields.items() if value not in (None, "", [], {}, ())}
    width = max((len(name) for name in known), default=0)
    for name, value in known.items():
        first, *rest = _block(value)
        _write(f"{name:<{width}}  {first}")
        for line in rest:
            _write(f"{'':<{width}}  {line}")


def line(text: str) -> None:
    """Print one line on stdout."""
    _write(text)


def note(text: str) -> None:
    """Say something to the person on stderr, out of the way of the data."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def colour(state: str) -> str:
    """Return the style a state's word is drawn in."""
    return _COLOURS.get(state, "")


def printable(text: str) -> str:
    r"""Return text with every control character made visible.

    Titles and errors are other people's words; raw, they could move the cursor, hide
    lines or turn the rest of the screen around.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(_visible(character) for character in text)


def quoted(word: str) -> str:
    """Write a word as a shell takes it, for commands that are to be copied.

    >>> quoted("ada"), quoted("Ada Lovelace")
    ('ada', "'Ada Lovelace'")
    """
    return shlex.quote(word)


def instant(at: datetime) -> str:
    """Write an instant for people, in UTC to the second.

    >>> instant(datetime(2026, 11, 16, 7, 0, tzinfo=UTC))
    '2026-11-16 07:00:00Z'
    """
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def short_instant(at: datetime) -> str:
    """Write an instant for a narrow column: in UTC to the minute, with the year left out.

    >>> short_instant(datetime(2026, 11, 16, 7, 0, tzinfo=UTC))
    '11-16 07:00'
    """
    return f"{at.astimezone(UTC):%m-%d %H:%M}"


def _for_json(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value)


def _visible(character: str) -> str:
    if character != _JOINER and unicodedata.category(character) in _UNSEEN:
        return character.encode("unicode_escape").decode("ascii")
    return character


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(item) for item in value) or "-"
    return printable(" ".join(str(value).split())) or "-"


def _block(value: object) -> list[str]:
    if isinstance(value, Mapping) or (isinstance(value, list) and not _is_flat(value)):
        value = json.dumps(value, indent=2, ensure_ascii=False, default=_for_json)
    elif not isinstance(value, str):
        value = _cell(value)
    return [printable(part) for part in str(value).split("\n")] or [""]


def _is_flat(values: list[object]) -> bool:
    return all(isinstance(value, (str, int, float)) for value in values)


def _align(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        _write(padded.rstrip())


def _draw(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for header in headers:
        # An id that is cut cannot be copied.
        drawn.add_column(header, no_wrap=header == "ID", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell, style=colour(cell)) for cell in row))
    Console(file=sys.stdout).print(drawn)


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
