"""The part of a content that the header Range asks for."""

import re
from dataclasses import dataclass

# Several ranges at once are answered with the whole content, which the standard allows.
_RANGE = re.compile(r"bytes=(?P<first>\d{0,18})-(?P<last>\d{0,18})", re.ASCII)


@dataclass(frozen=True)
class ByteRange:
    """Bytes from `start` up to but not including `end`, of a content of `size` bytes."""

    start: int
    end: int
    size: int

    @property
    def header(self) -> str:
        """The value of the header Content-Range."""
        return f"bytes {self.start}-{self.end - 1}/{self.size}"


class RangeNotSatisfiable(Exception):
    """The range begins behind the end of the content."""


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """Return the range that a header asks for, None for the whole content.

    Raises RangeNotSatisfiable. A header that is no single range of bytes is ignored.

    >>> parse_range("bytes=2-3", 10)
    ByteRange(start=2, end=4, size=10)
    >>> parse_range("bytes=-3", 10)
    ByteRange(start=7, end=10, size=10)
    """
    found = _RANGE.fullmatch(header or "")
    if found is None or not size or not (found["first"] or found["last"]):
        return None
    if not found["first"]:
        if not int(found["last"]):
            raise RangeNotSatisfiable
        return ByteRange(max(0, size - int(found["last"])), size, size)
    start, end = int(found["first"]), int(found["last"] or size - 1) + 1
    if start >= size:
        raise RangeNotSatisfiable
    return ByteRange(start, min(end, size), size) if end > start else None
