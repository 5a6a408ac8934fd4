"""How much of the log of a run is kept: its first and its last bytes."""

from collections.abc import Iterator
from typing import Final

HEAD_BYTES: Final = 256 * 1024
TAIL_BYTES: Final = 768 * 1024
CHUNK_BYTES: Final = 16 * 1024
#: The stream of the row that stands for what is missing between head and tail.
CUT: Final = "cut"
#: Its text, with two places to fill.
CUT_TEXT: Final = (
    "[{lines} lines, {bytes} bytes are missing here: the log of a run keeps its first"
    f" {HEAD_BYTES // 1024} KB and its last {TAIL_BYTES // 1024} KB]\n"
)
# The longest UTF-8 form of a character.
_MAX_CHARACTER_BYTES: Final = 4


def pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces that fit into a chunk.

    >>> [len(piece) for piece in pieces("x" * 20_000)]
    [16384, 3616]
    """
    longest = CHUNK_BYTES if text.isascii() else CHUNK_BYTES // _MAX_CHARACTER_BYTES
    for start in range(0, len(text), longest):
        yield text[start : start + longest]
