"""Print results: tables for a terminal, aligned columns for a pipe, JSON for programs.

On a terminal ids are shortened and times are local. In a pipe ids are whole and times are UTC, so
that a script reads the same text on every machine.
"""

import json
import re
import shlex
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

# Colour only repeats what the text beside it says.
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
# Control, format, surrogate and separator characters change the screen instead of being visible.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# The zero-width joiner combines emoji and has no other effect.
_JOINER = "\u200d"
# The last characters of an id are random; eight of them identify it among a person's recent ids.
SHORT_ID = 8
GAP = 2
# A column of free text that would be narrower than this is hard to read.
NARROWEST_TEXT = 14
# Only the last column of a table is wrapped; longer cells of the others are cut. A word, such as
# the name of a setting, must be copied whole and is cut later than a text.
WIDEST_CELL = 24
WIDEST_WORD = 44
# The sequences with which programs colour their output and move the cursor.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_JSON_LINES = ContextVar("json_lines", default=False)


class Id(str):
    """An id in a table or a record: short on a terminal, whole in a pipe."""

    __slots__ = ()


def is_terminal(stream: TextIO) -> bool:
    """Whether a person reads this stream on a terminal."""
    return stream.isatty()


@contextmanager
def json_lines() -> Iterator[None]:
    """Print each item of a JSON list on its own line while the context is open."""
    token = _JSON_LINES.set(True)
    try:
        yield
    finally:
        _JSON_LINES.reset(token)


def document(value: object) -> None:
    """Print one JSON document on stdout; inside `json_lines`, one line for each item of a list."""
    if _JSON_LINES.get():
        documents(value if isinstance(value, list) else [value])
        return
    _write(json.dumps(value, indent=2, ensure_ascii=False, default=_for_json))


def documents(values: Iterable[object]) -> None:
    """Print one JSON document per line on stdout."""
    for value in values:
        _write(json.dumps(value, ensure_ascii=False, default=_for_json))


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str = "",
    optional: Sequence[str] = (),
    wrap: bool = True,
) -> None:
    """Print rows under headers, or `empty` on stderr when there are no rows.

    Without rows and without `empty`, only the headers are printed.

    A pipe gets every column. A terminal does not show columns without any value; when the table is
    wider than the terminal, the columns in `optional` are left out one by one, in their order, and
    if that is not enough each row becomes a block of lines. The last column is wrapped; with
    `wrap=False` it is cut, so that each row is one line.
    """
    values = [list(row) for row in rows]
    if not values and empty:
        note(empty)
    elif is_terminal(sys.stdout):
        cells = [[_cell(value) for value in row] for row in values]
        _draw_to_fit(headers, cells, optional, wrap=wrap)
    else:
        _align([list(headers), *([_cell(value) for value in row] for row in values)])


def record(fields: Mapping[str, object]) -> None:
    """Print the fields of one object, one per line; fields without a value are left out."""
    present = {name: value for name, value in fields.items() if value not in (None, "", [], {}, ())}
    width = max((len(name) for name in present), default=0)
    for name, value in present.items():
        first, *rest = _wrapped(_block(value), width + GAP)
        _write(f"{name:<{width}}  {first}")
        for text in rest:
            _write(f"{'':<{width}}  {text}")


def line(text: str) -> None:
    """Print one line on stdout."""
    _write(text)


def note(text: str) -> None:
    """Print a message for the person on stderr, so that stdout holds only data."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def colour(state: str) -> str:
    """Return the style in which a state is printed."""
    return _COLOURS.get(state, "")


def printable(text: str) -> str:
    r"""Return text with every control character written as an escape sequence.

    Titles and errors are written by other people; printed raw they could move the cursor, hide
    lines or reverse the direction of the text.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(_visible(character) for character in text)


def log_text(text: str) -> str:
    r"""Return text of a log for a terminal: without colours, other control characters escaped.

    >>> log_text("\x1b[32mok\x1b[0m\tdone\r\nnext\a")
    'ok\tdone\nnext\\x07'
    """
    plain = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return "".join(each if each in "\n\t" else _visible(each) for each in plain)


def text(content: str) -> None:
    """Print a text on stdout as it is, without a further line end."""
    sys.stdout.write(content)
    sys.stdout.flush()


def quoted(argument: str) -> str:
    """Quote an argument for a shell, for commands that people copy.

    >>> quoted("ada"), quoted("Ada Lovelace")
    ('ada', "'Ada Lovelace'")
    """
    return shlex.quote(argument)


def short_id(whole: str) -> str:
    """Return the last characters of an id, which every command accepts instead of the whole id.

    >>> short_id("task_01J8K0000000000000000000AB")
    '000000AB'
    """
    return whole.rpartition("_")[2][-SHORT_ID:].upper()


def shown_id(whole: str) -> str:
    """Return an id as tables print it: short on a terminal, whole in a pipe."""
    return short_id(whole) if is_terminal(sys.stdout) else whole


def instant(at: datetime) -> str:
    """Write an instant to the second: local time on a terminal, else UTC.

    >>> instant(datetime(2026, 11, 16, 7, 0, tzinfo=UTC))
    '2026-11-16 07:00:00Z'
    """
    if is_terminal(sys.stdout):
        return f"{at.astimezone():%Y-%m-%d %H:%M:%S %Z}"
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def short_instant(at: datetime) -> str:
    """Write an instant to the minute, without the year: local time on a terminal, else UTC.

    >>> short_instant(datetime(2026, 11, 16, 7, 0, tzinfo=UTC))
    '11-16 07:00'
    """
    local = at.astimezone() if is_terminal(sys.stdout) else at.astimezone(UTC)
    return f"{local:%m-%d %H:%M}"


def instant_of_this_year(at: datetime) -> str:
    """Write an instant to the second, without the year: local time on a terminal, else UTC.

    >>> instant_of_this_year(datetime(2026, 11, 16, 7, 0, tzinfo=UTC))
    '11-16 07:00:00'
    """
    local = at.astimezone() if is_terminal(sys.stdout) else at.astimezone(UTC)
    return f"{local:%m-%d %H:%M:%S}"


def time_zone() -> str:
    """Return the name of the time zone in which instants are printed."""
    return datetime.now().astimezone().tzname() or "local" if is_terminal(sys.stdout) else "UTC"


def duration(seconds: float) -> str:
    """Write a duration with its two largest units.

    >>> [duration(seconds) for seconds in (0.4, 61, 3720)]
    ['0.4s', '1m01s', '1h02m']
    """
    minutes, rest = divmod(int(seconds), 60)
    if not minutes:
        return f"{seconds:.1f}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def _for_json(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value)


def _visible(character: str) -> str:
    if character != _JOINER and unicodedata.category(character) in _INVISIBLE:
        return character.encode("unicode_escape").decode("ascii")
    return character


def _cell(value: object) -> str:
    """Return the text of one cell of a table."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return short_instant(value) if is_terminal(sys.stdout) else instant(value)
        case Id():
            return printable(shown_id(value))
        case list() | tuple():
            return ", ".join(_cell(item) for item in value) or "-"
        case _:
            return printable(" ".join(str(value).split())) or "-"


def _block(value: object) -> list[str]:
    """Return the lines of one field of a record."""
    if isinstance(value, datetime):
        return [instant(value)]
    if isinstance(value, Mapping) or (isinstance(value, list) and not _is_flat(value)):
        value = json.dumps(value, indent=2, ensure_ascii=False, default=_for_json)
    elif not isinstance(value, str):
        value = _cell(value)
    return [printable(part) for part in str(value).split("\n")] or [""]


def _wrapped(lines: list[str], indent: int) -> list[str]:
    """Return the lines, on a terminal wrapped at spaces to what is left beside the indent."""
    if not is_terminal(sys.stdout):
        return lines
    width = max(NARROWEST_TEXT, shutil.get_terminal_size().columns - indent)
    return [part for line in lines for part in _wrap(line, width)]


def _wrap(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    begin = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line, width, subsequent_indent=begin, break_long_words=False, break_on_hyphens=False
    )


def _is_flat(values: list[object]) -> bool:
    return all(isinstance(value, (str, int, float)) for value in values)


def _align(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        _write(padded.rstrip())


def _draw_to_fit(
    headers: Sequence[str], rows: list[list[str]], optional: Sequence[str], *, wrap: bool
) -> None:
    """Draw a table that fits the terminal, or a block per row if no table does."""
    width = shutil.get_terminal_size().columns
    shown = [
        number
        for number in range(len(headers))
        if not rows or any(row[number] != "-" for row in rows)
    ]
    removable = [number for name in optional for number in shown if headers[number] == name]
    while removable and _least_width(headers, rows, shown) > width:
        shown.remove(removable.pop(0))
    names = [headers[number] for number in shown]
    if _least_width(headers, rows, shown) > width:
        _print_blocks(names, [[row[number] for number in shown] for row in rows])
    else:
        cut = [[*map(_cut, (row[number] for number in shown[:-1])), row[shown[-1]]] for row in rows]
        if not wrap:
            columns = list(zip(names, *cut, strict=True))[:-1]
            room = width - sum(max(map(_width, column)) + GAP for column in columns)
            cut = [[*row[:-1], _cut(row[-1], room)] for row in cut]
        _draw(names, cut, width)


def _least_width(headers: Sequence[str], rows: list[list[str]], shown: Sequence[int]) -> int:
    """Return how narrow the table can be: only the last column may be wrapped."""
    widths = [max(_width(_cut(row[number])) for row in [headers, *rows]) for number in shown]
    widths[-1:] = [min(width, NARROWEST_TEXT) for width in widths[-1:]]
    return sum(widths) + GAP * (len(widths) - 1)


def _cut(cell: str, widest: int | None = None) -> str:
    if widest is None:
        widest = WIDEST_CELL if " " in cell else WIDEST_WORD
    return cell if len(cell) <= widest else f"{cell[: widest - 1]}…"


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes; letters of East Asia take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _print_blocks(headers: Sequence[str], rows: list[list[str]]) -> None:
    """Print each row as lines of header and value, with an empty line between rows."""
    width = max(map(len, headers))
    for number, row in enumerate(rows):
        if number:
            _write("")
        for header, cell in zip(headers, row, strict=True):
            if cell != "-":
                _write(f"{header.lower():<{width}}  {cell}")


def _draw(headers: Sequence[str], rows: list[list[str]], width: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        box=SIMPLE_HEAD,
        header_style="bold",
        pad_edge=False,
        show_edge=False,
        padding=(0, GAP - 1, 0, 0),
    )
    for number, header in enumerate(headers):
        # Only the last column is wrapped: an id or a time on two lines cannot be read or copied.
        drawn.add_column(header, no_wrap=number < len(headers) - 1, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell, style=colour(cell)) for cell in row))
    Console(file=sys.stdout, width=width).print(drawn)


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
