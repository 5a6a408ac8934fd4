"""The terminal of `overnight up`: messages of the supervisor, prefixed lines of the services."""

import errno
import os
import queue
import threading
import time
from typing import TextIO

NAME_WIDTH = 11
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
BOLD = 1
#: Lines kept while the terminal does not accept output (Ctrl-S, a stopped pager).
BACKLOG = 10_000
CLOSE_TIMEOUT = 2.0
#: The errors of a full disk; `overnight up --detach` prints to a file.
NO_ROOM_PAUSE = 1.0
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Console:
    """Print messages of the supervisor and lines of the services to one stream.

    A thread writes, because a paused terminal must not stop the supervisor. Lines that exceed the
    backlog are not printed; the log files have them. With `quiet`, no service line is printed.
    """

    def __init__(
        self, stream: TextIO, *, coloured: bool | None = None, quiet: bool = False
    ) -> None:
        self._stream = _buffered(stream)
        self._coloured = wants_colour(stream) if coloured is None else coloured
        self._quiet = quiet
        self._colours: dict[str, int] = {}
        self._lines: queue.Queue[str | None] = queue.Queue(BACKLOG)
        self._writer = threading.Thread(target=self._write, name="console", daemon=True)
        self._writer.start()

    def service_line(self, service: str, line: str) -> None:
        """Print one line of a service's output behind the service's name."""
        if not self._quiet:
            self._put(self._prefix(service) + line)

    def message(self, text: str) -> None:
        """Print a message of the supervisor."""
        self._put(f"\x1b[{BOLD}m{text}\x1b[0m" if self._coloured else text)

    def close(self) -> None:
        """Print the lines still in the backlog; give up when the terminal stays paused."""
        try:
            self._lines.put(None, timeout=CLOSE_TIMEOUT)
        except queue.Full:
            return
        self._writer.join(CLOSE_TIMEOUT)

    def _prefix(self, service: str) -> str:
        padded = f"{service:<{NAME_WIDTH}} | "
        if not self._coloured:
            return padded
        colour = self._colours.setdefault(service, COLOURS[len(self._colours) % len(COLOURS)])
        return f"\x1b[{colour}m{padded}\x1b[0m"

    def _put(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            return

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                # What a full disk refused stays in the buffer, so it is not written again.
                while not self._flush():
                    time.sleep(NO_ROOM_PAUSE)
            except (OSError, ValueError):
                return  # the terminal was closed; the log files are still written

    def _flush(self) -> bool:
        """Print what was written; return False if the stream is a file on a full disk."""
        try:
            self._stream.flush()
        except OSError as error:
            if error.errno in NO_ROOM:
                return False
            raise
        return True


def _buffered(stream: TextIO) -> TextIO:
    """Return a stream to the same file that keeps what could not be written until a later flush.

    Python's own output stream loses it if PYTHONUNBUFFERED is set.
    """
    stream.flush()
    try:
        descriptor = stream.fileno()
    except OSError:
        return stream  # a stream in memory
    return open(descriptor, "w", encoding=stream.encoding, errors="replace", closefd=False)


def wants_colour(stream: TextIO) -> bool:
    """Return whether to print colours: only on a terminal, and not when the user declined them."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
