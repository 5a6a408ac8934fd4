"""The lines that a run of a pull agent has logged and the service does not have yet."""

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from threading import Lock
from typing import Final

from overnight.models.agents import MAX_LOG_TEXT

# While the service is away, older lines are dropped for newer ones.
MAX_WAITING: Final = 16 * MAX_LOG_TEXT


class LogLines:
    """Lines in the order in which they were logged; handlers add them, the agent sends them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lines: deque[str] = deque()
        self._size = 0
        self._dropped = 0

    def add(self, message: str, fields: Mapping[str, object]) -> None:
        """Add one line with the time, the message and the fields."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        shown = [f"{name}={value}" for name, value in fields.items()]
        line = " ".join([now, "INFO", message, *shown])[: MAX_LOG_TEXT - 1] + "\n"
        with self._lock:
            self._lines.append(line)
            self._size += len(line)
            while self._size > MAX_WAITING:
                self._size -= len(self._lines.popleft())
                self._dropped += 1

    def take(self) -> str:
        """Return lines that fit into one request, and forget them; empty if there are none."""
        taken: list[str] = []
        size = 0
        with self._lock:
            if self._dropped:
                taken.append(f"[{self._dropped} lines are missing: the service was away]\n")
                size, self._dropped = len(taken[0]), 0
            while self._lines and size + len(self._lines[0]) <= MAX_LOG_TEXT:
                line = self._lines.popleft()
                self._size -= len(line)
                size += len(line)
                taken.append(line)
        return "".join(taken)

    def put_back(self, text: str) -> None:
        """Keep lines that could not be sent for the next try."""
        with self._lock:
            self._lines.appendleft(text)
            self._size += len(text)
