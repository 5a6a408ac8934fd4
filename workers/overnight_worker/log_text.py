"""Makes a stream of output fit to be stored: valid text, without secrets, line by line."""

import codecs

from overnight_server.mask import StreamMask, mask_credentials

# Postgres stores no NUL in a text.
_NUL, _REPLACEMENT = "\0", "\ufffd"


class LogText:
    """Reads one stream of a run in parts, and returns it in whole lines.

    A line that grows longer than `longest_line` characters is returned in pieces. Carriage returns
    end a line too, so that a progress bar is seen while it moves.
    """

    def __init__(self, longest_line: int) -> None:
        self._longest_line = longest_line
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._mask = StreamMask()
        # The line so far, and the part of it that is not masked yet.
        self._line = ""
        self._unmasked = ""

    def feed(self, part: bytes | str) -> str:
        """Return the lines that a part completes, with secrets masked; often none."""
        text = self._decoder.decode(part) if isinstance(part, bytes) else part
        self._unmasked += text
        # `print` writes a line in two parts or more; it is masked once.
        if not ("\n" in text or "\r" in text or self._is_long()):
            return ""
        self._line += self._mask.feed(_storable(self._unmasked))
        self._unmasked = ""
        end = max(self._line.rfind("\n"), self._line.rfind("\r")) + 1
        if len(self._line) - end > self._longest_line:
            end = len(self._line)
        lines, self._line = self._line[:end], self._line[end:]
        return mask_credentials(lines)

    def rest(self) -> str:
        """Return the line that is not complete: the stream has ended."""
        text = _storable(self._unmasked + self._decoder.decode(b"", final=True))
        rest = self._line + self._mask.feed(text) + self._mask.rest()
        self._line = self._unmasked = ""
        return mask_credentials(rest)

    def _is_long(self) -> bool:
        return len(self._line) + len(self._unmasked) > self._longest_line


def _storable(text: str) -> str:
    """Return a text without NUL and without halves of surrogate pairs, which UTF-8 cannot hold."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text.replace(_NUL, _REPLACEMENT)
