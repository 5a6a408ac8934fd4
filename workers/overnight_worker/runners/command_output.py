"""Reads stdout and stderr of a command: they are the run's log, and their end may be its output."""

import os
from typing import Final

from overnight_worker.run_context import RunContext

READ_BYTES: Final = 1 << 16
# How much of the end of a stream is kept, for the output and the error message of the run.
TAIL_BYTES: Final = 1 << 16


class CommandOutput:
    """One stream of a command: it is read to its end, and written to the run's log."""

    def __init__(self, name: str, context: RunContext) -> None:
        self._name = name
        self._context = context
        self._tail = bytearray()

    def read(self, descriptor: int) -> None:
        """Read until the end of the stream; a command that writes faster than this waits."""
        while data := os.read(descriptor, READ_BYTES):
            self._tail += data
            del self._tail[:-TAIL_BYTES]
            self._context.write_log(self._name, data)

    @property
    def text(self) -> str:
        """The end of the stream as text, at most TAIL_BYTES of it, without what is no character."""
        return self._tail.decode(errors="replace").replace("\0", "\ufffd").strip()

    @property
    def last_line(self) -> str:
        """The last line that is not empty; an empty text if there is none."""
        lines = self.text.splitlines()
        return lines[-1].strip() if lines else ""
