"""The one terminal that all processes share: a prefix and a colour for each of them."""

import os
import queue
import threading
from typing import TextIO

NAME_WIDTH = 11
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
BOLD = 1
#: Lines kept for a terminal that does not read just now.
BACKLOG = 10_000
FAREWELL = 2.0


class Console:
    """Print lines of many processes to one stream, each under its own name.

    A thread does the writing: a terminal that someone has paused must not stop the supervisor and
    with it every process. What does not fit the backlog is left out here; the log files have it.
    """

    def __init__(
        self, stream: TextIO, *, coloured: bool | None = None, quiet: bool = False
    ) -> None:
        self._stream = stream
        self._coloured = wants_colour(stream) if coloured is None else coloured
        self._quiet = quiet
        self._colours: dict[str, int] = {}
        self._lines: queue.Queue[str | None] = queue.Queue(BACKLOG)
        self._writer = threading.Thread(target=self._write, name="console", daemon=True)
        self._writer.start()

    def line(self, name: str, text: str) -> None:
        """Show one line of a process's output."""
        if not self._quiet:
            self._put(self._prefix(name) + text)

    def say(self, text: str) -> None:
        """Show a word of the deployment itself."""
        self._put(f"\x1b[{BOLD}m{text}\x1b[0m" if self._coloured else text)

    def close(self) -> None:
        """Show what is still waiting, unless nobody reads it."""
        try:
            self._lines.put(None, timeout=FAREWELL)
        except queue.Full:
            return
        self._writer.join(FAREWELL)

    def _prefix(self, name: str) -> str:
        padded = f"{name:<{NAME_WIDTH}} | "
        if not self._coloured:
            return padded
        colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
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
                self._stream.flush()
            except (OSError, ValueError):
                return  # nobody looks any more; the log files go on


def wants_colour(stream: TextIO) -> bool:
    """Colour only what a person sees on a terminal, and never against their wish."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
